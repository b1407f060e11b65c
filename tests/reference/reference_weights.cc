#include "reference/reference_weights.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace deltafin::reference {
namespace {

using Json = nlohmann::json;

// The tensors of all shards by name.
class Source {
 public:
  explicit Source(const std::string& dir) {
    for (const auto& entry : std::filesystem::directory_iterator(dir)) {
      if (entry.path().extension() != ".safetensors") continue;
      tensors_.merge(ReadSafetensors(entry.path().string()));
    }
  }

  const Tensor& Get(const std::string& name) const {
    const auto it = tensors_.find("language_model." + name);
    if (it == tensors_.end()) throw std::runtime_error("no tensor " + name);
    return it->second;
  }

  Matrix GetMatrix(const std::string& name, int64_t rows, int64_t cols) const {
    const Tensor& tensor = Get(name + ".weight");
    if (tensor.shape != std::vector<int64_t>{rows, cols}) {
      throw std::runtime_error("shape of " + name);
    }
    const Vec values = tensor.ToDoubles();
    return {rows, cols, std::vector<float>(values.begin(), values.end())};
  }

  Vec GetVector(const std::string& name, int64_t size) const {
    const Tensor& tensor = Get(name);
    if (tensor.size() != size) throw std::runtime_error("size of " + name);
    return tensor.ToDoubles();
  }

  Matrix GetMxfp4(const std::string& name, int64_t rows, int64_t cols) const {
    Matrix matrix = DequantizeMxfp4(Get(name + ".weight_packed"), Get(name + ".weight_scale"));
    if (matrix.rows != rows || matrix.cols != cols) throw std::runtime_error("shape of " + name);
    return matrix;
  }

 private:
  std::map<std::string, Tensor> tensors_;
};

KdaWeights LoadKda(const Source& source, const Config& c, const std::string& prefix) {
  const int64_t width = c.kda_heads * c.kda_head_dim;
  KdaWeights w;
  w.q_proj = source.GetMatrix(prefix + "q_proj", width, c.hidden_size);
  w.k_proj = source.GetMatrix(prefix + "k_proj", width, c.hidden_size);
  w.v_proj = source.GetMatrix(prefix + "v_proj", width, c.hidden_size);
  w.g_proj = source.GetMatrix(prefix + "g_proj", width, c.hidden_size);
  w.q_conv = source.GetVector(prefix + "q_conv1d.weight", width * c.conv_kernel);
  w.k_conv = source.GetVector(prefix + "k_conv1d.weight", width * c.conv_kernel);
  w.v_conv = source.GetVector(prefix + "v_conv1d.weight", width * c.conv_kernel);
  w.f_a_proj = source.GetMatrix(prefix + "f_a_proj", c.kda_head_dim, c.hidden_size);
  w.f_b_proj = source.GetMatrix(prefix + "f_b_proj", width, c.kda_head_dim);
  w.b_proj = source.GetMatrix(prefix + "b_proj", c.kda_heads, c.hidden_size);
  // Section 0, trap 1: per head; entries beyond the heads are padding.
  w.a_log = source.Get(prefix + "A_log").ToDoubles();
  if (static_cast<int64_t>(w.a_log.size()) < c.kda_heads) throw std::runtime_error("A_log size");
  w.a_log.resize(c.kda_heads);
  w.dt_bias = source.GetVector(prefix + "dt_bias", width);
  w.o_norm = source.GetVector(prefix + "o_norm.weight", c.kda_head_dim);
  w.o_proj = source.GetMatrix(prefix + "o_proj", c.hidden_size, width);
  return w;
}

MlaWeights LoadMla(const Source& source, const Config& c, const std::string& prefix) {
  const int64_t qk_dim = c.qk_nope_head_dim + c.qk_rope_head_dim;
  const int64_t kv_dim = c.qk_nope_head_dim + c.v_head_dim;
  const int64_t out_width = c.mla_heads * c.v_head_dim;
  MlaWeights w;
  w.q_a_proj = source.GetMatrix(prefix + "q_a_proj", c.q_lora_rank, c.hidden_size);
  w.q_a_norm = source.GetVector(prefix + "q_a_layernorm.weight", c.q_lora_rank);
  w.q_b_proj = source.GetMatrix(prefix + "q_b_proj", c.mla_heads * qk_dim, c.q_lora_rank);
  w.kv_a_proj = source.GetMatrix(prefix + "kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim,
                                 c.hidden_size);
  w.kv_a_norm = source.GetVector(prefix + "kv_a_layernorm.weight", c.kv_lora_rank);
  w.kv_b_proj = source.GetMatrix(prefix + "kv_b_proj", c.mla_heads * kv_dim, c.kv_lora_rank);
  w.g_proj = source.GetMatrix(prefix + "g_proj", out_width, c.hidden_size);
  w.o_proj = source.GetMatrix(prefix + "o_proj", c.hidden_size, out_width);
  return w;
}

Mlp LoadMlp(const Source& source, const std::string& prefix, int64_t hidden, int64_t width) {
  return {source.GetMatrix(prefix + "gate_proj", width, hidden),
          source.GetMatrix(prefix + "up_proj", width, hidden),
          source.GetMatrix(prefix + "down_proj", hidden, width)};
}

MoeWeights LoadMoe(const Source& source, const Config& c, const std::string& prefix) {
  MoeWeights w;
  w.gate = source.GetMatrix(prefix + "gate", c.num_experts, c.hidden_size);
  w.score_bias = source.GetVector(prefix + "gate.e_score_correction_bias", c.num_experts);
  w.latent_down =
      source.GetMatrix(prefix + "routed_expert_down_proj", c.latent_size, c.hidden_size);
  w.latent_norm = source.GetVector(prefix + "routed_expert_norm.weight", c.latent_size);
  w.latent_up = source.GetMatrix(prefix + "routed_expert_up_proj", c.hidden_size, c.latent_size);
  for (int64_t expert = 0; expert < c.num_experts; ++expert) {
    const std::string name = prefix + "experts." + std::to_string(expert) + ".";
    w.experts.push_back({source.GetMxfp4(name + "w1", c.moe_intermediate_size, c.latent_size),
                         source.GetMxfp4(name + "w3", c.moe_intermediate_size, c.latent_size),
                         source.GetMxfp4(name + "w2", c.latent_size, c.moe_intermediate_size)});
  }
  w.shared = LoadMlp(source, prefix + "shared_experts.", c.hidden_size,
                     c.num_shared_experts * c.moe_intermediate_size);
  return w;
}

LayerWeights LoadLayer(const Source& source, const Config& c, int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = c.hidden_size;
  LayerWeights w;
  w.input_norm = source.GetVector(prefix + "input_layernorm.weight", hidden);
  w.post_attention_norm = source.GetVector(prefix + "post_attention_layernorm.weight", hidden);
  w.attn_res_norm = source.GetVector(prefix + "self_attention_res_norm.weight", hidden);
  w.attn_res_proj = source.GetVector(prefix + "self_attention_res_proj.weight", hidden);
  w.mlp_res_norm = source.GetVector(prefix + "mlp_res_norm.weight", hidden);
  w.mlp_res_proj = source.GetVector(prefix + "mlp_res_proj.weight", hidden);
  if (c.is_mla[layer]) {
    w.mla = LoadMla(source, c, prefix + "self_attn.");
  } else {
    w.kda = LoadKda(source, c, prefix + "self_attn.");
  }
  if (c.IsMoe(layer)) {
    w.moe = LoadMoe(source, c, prefix + "block_sparse_moe.");
  } else {
    w.dense = LoadMlp(source, prefix + "mlp.", hidden, c.dense_intermediate_size);
  }
  return w;
}

}  // namespace

Config LoadConfig(const std::string& dir) {
  std::ifstream in(dir + "/config.json");
  const Json text = Json::parse(in).at("text_config");
  const Json& linear = text.at("linear_attn_config");
  Config c;
  c.vocab_size = text.at("vocab_size");
  c.hidden_size = text.at("hidden_size");
  c.num_layers = text.at("num_hidden_layers");
  c.attn_res_block_size = text.at("attn_res_block_size");
  c.rms_norm_eps = text.at("rms_norm_eps");
  c.kda_heads = linear.at("num_heads");
  c.kda_head_dim = linear.at("head_dim");
  c.conv_kernel = linear.at("short_conv_kernel_size");
  c.gate_lower_bound = linear.at("gate_lower_bound");
  c.is_mla.assign(c.num_layers, false);
  for (const int64_t one_based : linear.at("full_attn_layers")) c.is_mla.at(one_based - 1) = true;
  c.mla_heads = text.at("num_attention_heads");
  c.q_lora_rank = text.at("q_lora_rank");
  c.kv_lora_rank = text.at("kv_lora_rank");
  c.qk_nope_head_dim = text.at("qk_nope_head_dim");
  c.qk_rope_head_dim = text.at("qk_rope_head_dim");
  c.v_head_dim = text.at("v_head_dim");
  c.dense_intermediate_size = text.at("intermediate_size");
  c.first_k_dense_replace = text.at("first_k_dense_replace");
  c.moe_layer_freq = text.at("moe_layer_freq");
  c.num_experts = text.at("num_experts");
  c.experts_per_token = text.at("num_experts_per_token");
  c.num_shared_experts = text.at("num_shared_experts");
  c.moe_intermediate_size = text.at("moe_intermediate_size");
  c.latent_size = text.at("routed_expert_hidden_size");
  c.moe_renormalize = text.at("moe_renormalize");
  c.routed_scaling_factor = text.at("routed_scaling_factor");
  // Section 10: beta null or 0 means 1; linear beta null means no tanh on `up`.
  const Json& beta = text.at("activation_situ_beta");
  c.situ_beta = beta.is_null() || beta.get<double>() == 0 ? 1.0 : beta.get<double>();
  const Json& linear_beta = text.at("activation_situ_linear_beta");
  if (!linear_beta.is_null()) c.situ_linear_beta = linear_beta.get<double>();
  return c;
}

Weights LoadWeights(const std::string& dir) {
  Weights w;
  w.config = LoadConfig(dir);
  const Config& c = w.config;
  const Source source(dir);
  w.embed_tokens = source.GetMatrix("model.embed_tokens", c.vocab_size, c.hidden_size);
  w.lm_head = source.GetMatrix("lm_head", c.vocab_size, c.hidden_size);
  w.final_norm = source.GetVector("model.norm.weight", c.hidden_size);
  w.output_res_norm = source.GetVector("model.output_attn_res_norm.weight", c.hidden_size);
  w.output_res_proj = source.GetVector("model.output_attn_res_proj.weight", c.hidden_size);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    w.layers.push_back(LoadLayer(source, c, layer));
  }
  return w;
}

Matrix DequantizeMxfp4(const Tensor& packed, const Tensor& scale) {
  static constexpr float kE2m1[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  Matrix matrix;
  matrix.rows = packed.shape.at(0);
  matrix.cols = packed.shape.at(1) * 2;
  if (scale.shape != std::vector<int64_t>{matrix.rows, matrix.cols / 32}) {
    throw std::runtime_error("shape of the MXFP4 scales");
  }
  matrix.values.reserve(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t col = 0; col < matrix.cols; ++col) {
      const uint8_t byte = packed.bytes[row * matrix.cols / 2 + col / 2];
      const int code = col % 2 == 0 ? byte & 15 : byte >> 4;  // even columns: the low nibble
      const float magnitude = kE2m1[code & 7];
      const float value = (code & 8) != 0 ? -magnitude : magnitude;
      const int exponent = scale.bytes[row * (matrix.cols / 32) + col / 32] - 127;
      matrix.values.push_back(std::ldexp(value, exponent));
    }
  }
  return matrix;
}

}  // namespace deltafin::reference
