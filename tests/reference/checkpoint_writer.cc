#include "reference/checkpoint_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace deltafin::reference {
namespace {

using Json = nlohmann::json;
using Shape = std::vector<int64_t>;

// SplitMix64: the same numbers on every platform.
class Random {
 public:
  // A stream of its own for every tensor, so that changing one dimension leaves the others alone.
  Random(uint64_t seed, const std::string& name) : state_(seed * 0x9E3779B97F4A7C15U) {
    for (const char c : name) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001B3U;
  }

  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15U;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  double Uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(Next() >> 11) * 0x1p-53;
  }

 private:
  uint64_t state_;
};

struct OutTensor {
  std::string dtype;
  Shape shape;
  std::string bytes;
};

int64_t Count(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

void AppendF32(std::string& bytes, double value) {
  const auto narrow = static_cast<float>(value);
  char raw[sizeof(narrow)];
  std::memcpy(raw, &narrow, sizeof(narrow));
  bytes.append(raw, sizeof(raw));
}

void AppendBf16(std::string& bytes, double value) {
  const auto narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof(bits));
  bits += 0x7FFFU + (bits >> 16 & 1U);  // round to nearest even; no NaN here
  bytes += static_cast<char>(bits >> 16 & 0xFFU);
  bytes += static_cast<char>(bits >> 24);
}

// The tensors of one shard.
class Shard {
 public:
  explicit Shard(uint64_t seed) : seed_(seed) {}

  // Values uniform in [low, high].
  void Bf16(const std::string& name, const Shape& shape, double low, double high) {
    Fill(name, "BF16", shape, AppendBf16, low, high);
  }
  void F32(const std::string& name, const Shape& shape, double low, double high) {
    Fill(name, "F32", shape, AppendF32, low, high);
  }
  // A matrix whose outputs have about `gain` times the standard deviation of its inputs.
  void Linear(const std::string& name, int64_t rows, int64_t cols, double gain) {
    const double range = gain * std::sqrt(3.0 / static_cast<double>(cols));
    Bf16(name + ".weight", {rows, cols}, -range, range);
  }
  void Norm(const std::string& name, int64_t size) { Bf16(name + ".weight", {size}, 0.6, 1.4); }

  // Random codes; scales around that which keeps the standard deviation of inputs.
  void Mxfp4(const std::string& name, int64_t rows, int64_t cols) {
    constexpr double kCodeRms = 2.926;  // of the 16 codes: sqrt(8.5625)
    const double target = 1.0 / (kCodeRms * std::sqrt(static_cast<double>(cols)));
    const int centre = 127 + std::ilogb(target);
    Random random(seed_, name);
    OutTensor packed{"U8", {rows, cols / 2}, {}};
    for (int64_t i = 0; i < rows * cols / 2; ++i) {
      packed.bytes += static_cast<char>(random.Next() >> 56);
    }
    OutTensor scale{"U8", {rows, cols / 32}, {}};
    for (int64_t i = 0; i < rows * cols / 32; ++i) {
      scale.bytes += static_cast<char>(centre - 1 + static_cast<int>(random.Next() % 4));
    }
    tensors_.emplace(name + ".weight_packed", std::move(packed));
    tensors_.emplace(name + ".weight_scale", std::move(scale));
  }

  void Add(const std::string& name, OutTensor tensor) { tensors_.emplace(name, std::move(tensor)); }
  uint64_t seed() const { return seed_; }

  // In the order of the release: F32, BF16, then the experts, by name within each. Sorting names as
  // text gives the experts' decimal-string order and w1, w2, w3 with packed before scale.
  std::vector<std::pair<std::string, const OutTensor*>> Ordered() const {
    std::vector<std::pair<std::string, const OutTensor*>> ordered;
    for (const char* dtype : {"F32", "BF16", "U8"}) {
      for (const auto& [name, tensor] : tensors_) {
        if (tensor.dtype == dtype) ordered.emplace_back(name, &tensor);
      }
    }
    return ordered;
  }

 private:
  void Fill(const std::string& name, const char* dtype, const Shape& shape,
            void (*append)(std::string&, double), double low, double high) {
    Random random(seed_, name);
    OutTensor tensor{dtype, shape, {}};
    for (int64_t i = 0; i < Count(shape); ++i) append(tensor.bytes, random.Uniform(low, high));
    tensors_.emplace(name, std::move(tensor));
  }

  uint64_t seed_;
  std::map<std::string, OutTensor> tensors_;
};

void AddKda(Shard& shard, const CheckpointOptions& o, const std::string& prefix) {
  const int64_t width = o.kda_heads * o.kda_head_dim;
  for (const char* name : {"q_proj", "k_proj", "v_proj", "g_proj"}) {
    shard.Linear(prefix + name, width, o.hidden_size, 1.0);
  }
  for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
    shard.F32(prefix + name + ".weight", {width, 1, 4}, -0.9, 0.9);
  }
  shard.Linear(prefix + "f_a_proj", o.kda_head_dim, o.hidden_size, 1.0);
  shard.Linear(prefix + "f_b_proj", width, o.kda_head_dim, 1.0);
  shard.Linear(prefix + "b_proj", o.kda_heads, o.hidden_size, 1.0);
  // exp(A_log) from 0.4 to 3, and a bias that keeps most decays slow: states with a long memory.
  OutTensor a_log{"F32", {o.kda_heads}, {}};
  Random random(shard.seed(), prefix + "A_log");
  for (int64_t head = 0; head < o.kda_heads; ++head) {
    AppendF32(a_log.bytes, random.Uniform(-0.9, 1.1));
  }
  if (o.a_log_size == ALogSize::kPadded) {
    for (; a_log.shape[0] < o.kda_head_dim; ++a_log.shape[0]) AppendF32(a_log.bytes, 0.0);
  }
  shard.Add(prefix + "A_log", std::move(a_log));
  shard.F32(prefix + "dt_bias", {width}, -4.0, 0.5);
  shard.F32(prefix + "o_norm.weight", {o.kda_head_dim}, 0.6, 1.4);
  shard.Linear(prefix + "o_proj", o.hidden_size, width, 1.5);
}

void AddMla(Shard& shard, const CheckpointOptions& o, const std::string& prefix) {
  const int64_t qk_dim = o.qk_nope_head_dim + o.qk_rope_head_dim;
  const int64_t out_width = o.mla_heads * o.v_head_dim;
  shard.Linear(prefix + "q_a_proj", o.q_lora_rank, o.hidden_size, 1.0);
  shard.Norm(prefix + "q_a_layernorm", o.q_lora_rank);
  shard.Linear(prefix + "q_b_proj", o.mla_heads * qk_dim, o.q_lora_rank, 1.4);
  shard.Linear(prefix + "kv_a_proj_with_mqa", o.kv_lora_rank + o.qk_rope_head_dim, o.hidden_size,
               1.0);
  shard.Norm(prefix + "kv_a_layernorm", o.kv_lora_rank);
  shard.Linear(prefix + "kv_b_proj", o.mla_heads * (o.qk_nope_head_dim + o.v_head_dim),
               o.kv_lora_rank, 1.4);
  shard.Linear(prefix + "g_proj", out_width, o.hidden_size, 1.0);
  shard.Linear(prefix + "o_proj", o.hidden_size, out_width, 1.5);
}

void AddMlp(Shard& shard, const std::string& prefix, int64_t hidden, int64_t width) {
  shard.Linear(prefix + "gate_proj", width, hidden, 1.5);
  shard.Linear(prefix + "up_proj", width, hidden, 1.5);
  shard.Linear(prefix + "down_proj", hidden, width, 1.0);
}

void AddMoe(Shard& shard, const CheckpointOptions& o, const std::string& prefix) {
  shard.Linear(prefix + "gate", o.num_experts, o.hidden_size, 1.5);
  shard.F32(prefix + "gate.e_score_correction_bias", {o.num_experts}, -0.3, 0.3);
  shard.Linear(prefix + "routed_expert_down_proj", o.latent_size, o.hidden_size, 1.0);
  shard.Norm(prefix + "routed_expert_norm", o.latent_size);
  shard.Linear(prefix + "routed_expert_up_proj", o.hidden_size, o.latent_size, 0.7);
  AddMlp(shard, prefix + "shared_experts.", o.hidden_size,
         o.num_shared_experts * o.moe_intermediate_size);
  for (int64_t expert = 0; expert < o.num_experts; ++expert) {
    const std::string name = prefix + "experts." + std::to_string(expert) + ".";
    shard.Mxfp4(name + "w1", o.moe_intermediate_size, o.latent_size);
    shard.Mxfp4(name + "w2", o.latent_size, o.moe_intermediate_size);
    shard.Mxfp4(name + "w3", o.moe_intermediate_size, o.latent_size);
  }
}

// A residual mix's norm and its query, which spreads the scores by about 1.5.
void AddResidualMix(Shard& shard, const std::string& prefix, int64_t hidden) {
  shard.Norm(prefix + "_norm", hidden);
  shard.Linear(prefix + "_proj", 1, hidden, 1.5);
}

Shard LayerShard(const CheckpointOptions& o, int64_t layer) {
  Shard shard(o.seed);
  const std::string prefix = "language_model.model.layers." + std::to_string(layer) + ".";
  shard.Norm(prefix + "input_layernorm", o.hidden_size);
  shard.Norm(prefix + "post_attention_layernorm", o.hidden_size);
  AddResidualMix(shard, prefix + "self_attention_res", o.hidden_size);
  AddResidualMix(shard, prefix + "mlp_res", o.hidden_size);
  if (o.IsMla(layer)) {
    AddMla(shard, o, prefix + "self_attn.");
  } else {
    AddKda(shard, o, prefix + "self_attn.");
  }
  if (o.IsMoe(layer)) {
    AddMoe(shard, o, prefix + "block_sparse_moe.");
  } else {
    AddMlp(shard, prefix + "mlp.", o.hidden_size, o.dense_intermediate_size);
  }
  return shard;
}

Shard TopShard(const CheckpointOptions& o) {
  Shard shard(o.seed);
  shard.Bf16("language_model.model.embed_tokens.weight", {o.vocab_size(), o.hidden_size}, -1.7,
             1.7);
  shard.Linear("language_model.lm_head", o.vocab_size(), o.hidden_size, 2.0);
  shard.Norm("language_model.model.norm", o.hidden_size);
  AddResidualMix(shard, "language_model.model.output_attn_res", o.hidden_size);
  return shard;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

// Returns the bytes of its tensors.
uint64_t WriteShard(const Shard& shard, const std::string& path, int64_t header_spaces) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : shard.Ordered()) {
    const size_t begin = data.size();
    data += tensor->bytes;
    header[name] = {
        {"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';
  text.append(static_cast<size_t>(header_spaces), ' ');
  std::string framed;
  for (int i = 0; i < 8; ++i) framed += static_cast<char>(text.size() >> (8 * i) & 0xFFU);
  WriteFile(path, framed + text + data);
  return data.size();
}

}  // namespace

bool CheckpointOptions::IsMla(int64_t layer) const {
  return std::find(mla_layers.begin(), mla_layers.end(), layer) != mla_layers.end();
}

void WriteCheckpoint(const CheckpointOptions& o, const std::string& dir) {
  if (o.latent_size % 32 != 0 || o.moe_intermediate_size % 32 != 0) {
    throw std::invalid_argument("experts need widths that are multiples of 32");
  }
  std::filesystem::create_directories(dir);
  Json weight_map = Json::object();
  uint64_t total_bytes = 0;
  for (int64_t layer = 0; layer <= o.num_layers; ++layer) {
    const Shard shard = layer < o.num_layers ? LayerShard(o, layer) : TopShard(o);
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05d-of-%06d.safetensors", static_cast<int>(layer + 1),
                  static_cast<int>(o.num_layers + 1));
    total_bytes += WriteShard(shard, dir + "/" + name, o.header_spaces);
    for (const auto& [tensor, unused] : shard.Ordered()) weight_map[tensor] = name;
  }
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  WriteFile(dir + "/model.safetensors.index.json", index.dump(2));
  WriteFile(dir + "/config.json", ConfigJson(o));
  WriteFile(dir + "/generation_config.json", GenerationConfigJson(o));
  WriteFile(dir + "/tiktoken.model", TiktokenModel(o));
  WriteFile(dir + "/tokenizer_config.json", TokenizerConfigJson(o));
}

}  // namespace deltafin::reference
