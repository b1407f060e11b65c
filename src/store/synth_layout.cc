#include "store/synth_layout.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace deltafin {
namespace {

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

void Add(ShardPlan& plan, std::string name, std::initializer_list<int64_t> dims) {
  TensorSpec spec{std::move(name), DType::kBf16, {}, false};
  for (const int64_t dim : dims) spec.shape.dims[spec.shape.rank++] = dim;
  plan.tensors.push_back(std::move(spec));
}

// Widths of the release's vision part (spec section 2.5): the same beside any text model but for
// the width that it projects to.
constexpr int64_t kVisionWidth = 1024;
constexpr int64_t kVisionHeadsWidth = 1536;
constexpr int64_t kVisionMlpWidth = 4096;
constexpr int64_t kVisionBlocks = 27;

void AddProjector(const ModelConfig& config, ShardPlan& plan) {
  Add(plan, "mm_projector.proj.0.weight", {kVisionMlpWidth, kVisionMlpWidth});
  Add(plan, "mm_projector.proj.2.weight", {config.hidden_size, kVisionMlpWidth});
  Add(plan, "mm_projector.post_norm.weight", {config.hidden_size});
}

void AddVisionTower(ShardPlan& plan) {
  const std::string tower = "vision_tower.";
  for (int64_t block = 0; block < kVisionBlocks; ++block) {
    const std::string prefix = format("{}encoder.blocks.{}.", tower, block);
    Add(plan, prefix + "mlp.fc0.weight", {kVisionMlpWidth, kVisionWidth});
    Add(plan, prefix + "mlp.fc1.weight", {kVisionWidth, kVisionMlpWidth});
    Add(plan, prefix + "norm0.weight", {kVisionWidth});
    Add(plan, prefix + "norm1.weight", {kVisionWidth});
    Add(plan, prefix + "wo.weight", {kVisionWidth, kVisionHeadsWidth});
    Add(plan, prefix + "wqkv.weight", {3 * kVisionHeadsWidth, kVisionWidth});
  }
  Add(plan, tower + "encoder.final_layernorm.weight", {kVisionWidth});
  Add(plan, tower + "patch_embed.pos_emb.weight", {64, 64, kVisionWidth});
  Add(plan, tower + "patch_embed.proj.weight", {kVisionWidth, 3, 14, 14});
}

}  // namespace

int64_t NumShards(const ModelConfig& config, VisionShards vision) {
  return config.num_layers + (vision == VisionShards::kPresent ? 3 : 1);
}

ShardPlan PlanShard(const ModelConfig& config, int64_t shard, VisionShards vision) {
  const int64_t num_shards = NumShards(config, vision);
  DF_CHECK(0 <= shard && shard < num_shards);
  ShardPlan plan;
  plan.file_name = format("model-{:05}-of-{:06}.safetensors", shard + 1, num_shards);
  plan.is_vision = shard > config.num_layers;
  if (shard == config.num_layers + 1) {
    AddProjector(config, plan);
    return plan;
  }
  if (shard == config.num_layers + 2) {
    AddVisionTower(plan);
    return plan;
  }
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

uint64_t TensorBytes(const TensorSpec& spec) {
  return static_cast<uint64_t>(NumElements(spec.shape) * DTypeBytes(spec.dtype));
}

uint64_t DataBytes(const ShardPlan& plan) {
  uint64_t total = 0;
  for (const TensorSpec& spec : plan.tensors) total += TensorBytes(spec);
  return total;
}

std::string IndexJson(const ModelConfig& config, VisionShards vision) {
  std::string text = "{\"weight_map\":{\n";
  uint64_t total_bytes = 0;
  std::string separator;
  for (int64_t shard = 0; shard < NumShards(config, vision); ++shard) {
    const ShardPlan plan = PlanShard(config, shard, vision);
    total_bytes += DataBytes(plan);
    for (const TensorSpec& spec : plan.tensors) {
      text += format("{}    \"{}\": \"{}\"", separator, spec.name, plan.file_name);
      separator = ",\n";
    }
  }
  return text + format("\n}},\"metadata\":{{\"total_size\":{}}}}}\n", total_bytes);
}

}  // namespace deltafin
