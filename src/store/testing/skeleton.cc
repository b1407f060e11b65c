#include "store/testing/skeleton.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"
#include "io/file.h"

namespace deltafin {
namespace {

uint64_t TensorBytes(const TensorSpec& spec) {
  return static_cast<uint64_t>(NumElements(spec.shape) * DTypeBytes(spec.dtype));
}

void AddSpine(const ModelConfig& config, const LayerLayout& layout, ShardPlan& plan) {
  for (const VectorSpec& v : layout.vectors) {
    plan.tensors.push_back(v.tensor);
    if (v.id == SpineVector::kALog) {
      plan.tensors.back().shape.dims[0] = std::max(config.kda_heads, config.kda_head_dim);
    }
    if (!v.second.name.empty()) plan.tensors.push_back(v.second);
  }
  for (const MatrixSpec& m : layout.matrices) plan.tensors.push_back(m.tensor);
}

void AddExperts(const ModelConfig& config, int64_t layer, ShardPlan& plan) {
  std::vector<std::pair<std::string, int64_t>> order;
  for (int64_t expert = 0; expert < config.num_experts; ++expert) {
    order.emplace_back(std::to_string(expert), expert);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [name, expert] : order) {
    for (TensorSpec& part : LayoutOfExpert(config, layer, expert)) {
      plan.tensors.push_back(std::move(part));
    }
  }
}

// The release has the attention residual of layer 0 although nothing reads it.
void AddUnused(const ModelConfig& config, ShardPlan& plan) {
  const LayerLayout layer = LayoutOfLayer(config, 0);
  const auto mlp = std::find_if(layer.vectors.begin(), layer.vectors.end(),
                                [](const auto& v) { return v.id == SpineVector::kMlpResQuery; });
  for (TensorSpec spec : {mlp->tensor, mlp->second}) {
    const size_t at = spec.name.find("mlp_res");
    spec.name.replace(at, std::string("mlp_res").size(), "self_attention_res");
    DF_CHECK(IsUnusedTensor(spec.name));
    plan.tensors.push_back(std::move(spec));
  }
}

class OutputFile {
 public:
  explicit OutputFile(std::string path)
      : path_(std::move(path)), stream_(path_, std::ios::binary | std::ios::trunc) {}

  void Write(const std::string& text) {
    stream_.write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  void Close() {
    stream_.close();
    if (!stream_)
      throw Error(ErrorCode::kIo, format("{}: cannot write it; is the disk full?", path_));
  }

 private:
  std::string path_;
  std::ofstream stream_;
};

}  // namespace

int64_t NumShards(const ModelConfig& config) { return config.num_layers + 1; }

ShardPlan PlanShard(const ModelConfig& config, int64_t shard) {
  DF_CHECK(0 <= shard && shard < NumShards(config));
  ShardPlan plan;
  plan.file_name = format("model-{:05}-of-{:06}.safetensors", shard + 1, NumShards(config));
  if (shard == config.num_layers) {
    plan.tensors.push_back(LayoutOfEmbedding(config));
    AddSpine(config, LayoutOfTop(config), plan);
    return plan;
  }
  if (shard == 0) AddUnused(config, plan);
  AddSpine(config, LayoutOfLayer(config, shard), plan);
  if (config.IsMoe(shard)) AddExperts(config, shard, plan);
  return plan;
}

std::string SafetensorsHead(const ShardPlan& plan) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  uint64_t offset = 0;
  for (const TensorSpec& spec : plan.tensors) {
    const uint64_t end = offset + TensorBytes(spec);
    json += format(R"(,"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", spec.name,
                   DTypeName(spec.dtype), ShapeName(spec.shape), offset, end);
    offset = end;
  }
  json += '}';
  while (json.size() % 8 != 0) json += ' ';
  std::string head;
  for (int byte = 0; byte < 8; ++byte) head += static_cast<char>(json.size() >> (8 * byte) & 0xff);
  return head + json;
}

uint64_t DataBytes(const ShardPlan& plan) {
  uint64_t total = 0;
  for (const TensorSpec& spec : plan.tensors) total += TensorBytes(spec);
  return total;
}

void WriteSkeleton(const ModelConfig& config, const std::string& config_json,
                   const std::string& dir) {
  OutputFile config_file(JoinPath(dir, "config.json"));
  config_file.Write(config_json);
  config_file.Close();

  OutputFile index(JoinPath(dir, "model.safetensors.index.json"));
  uint64_t total_size = 0;
  std::string separator = "{\"weight_map\":{\n";
  for (int64_t shard = 0; shard < NumShards(config); ++shard) {
    const ShardPlan plan = PlanShard(config, shard);
    const std::string head = SafetensorsHead(plan);
    const std::string path = JoinPath(dir, plan.file_name);
    OutputFile file(path);
    file.Write(head);
    file.Close();
    std::error_code error;
    std::filesystem::resize_file(path, head.size() + DataBytes(plan), error);
    if (error) {
      throw Error(ErrorCode::kIo, format("{}: cannot make it {} bytes long: {}", path,
                                         head.size() + DataBytes(plan), error.message()));
    }
    total_size += DataBytes(plan);

    std::string lines;
    for (const TensorSpec& spec : plan.tensors) {
      lines += format("{}    \"{}\": \"{}\"", separator, spec.name, plan.file_name);
      separator = ",\n";
    }
    index.Write(lines);
  }
  index.Write(format("\n}},\"metadata\":{{\"total_size\":{}}}}}\n", total_size));
  index.Close();
}

}  // namespace deltafin
