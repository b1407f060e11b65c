// config.json and the weights of a Kimi K3 folder as the reference model uses them. Section numbers
// are those of the model's specification.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/safetensors_file.h"

namespace deltafin::reference {

// Section 1. Layers are 0-based here.
struct Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t attn_res_block_size = 0;
  double rms_norm_eps = 0;

  int64_t kda_heads = 0;
  int64_t kda_head_dim = 0;
  int64_t conv_kernel = 0;
  double gate_lower_bound = 0;
  std::vector<bool> is_mla;  // [num_layers]

  int64_t mla_heads = 0;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;

  int64_t dense_intermediate_size = 0;
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 0;
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t num_shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  int64_t latent_size = 0;
  bool moe_renormalize = true;
  double routed_scaling_factor = 1;
  double situ_beta = 1;
  std::optional<double> situ_linear_beta;

  bool IsMoe(int64_t layer) const {  // section 10
    return layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
  }
};

// [rows, cols], row-major. float holds every stored format exactly (bf16, f32, MXFP4).
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;
};

// gate, up [width, in], down [out, width]; of a routed expert w1, w3, w2.
struct Mlp {
  Matrix gate, up, down;
};

// Section 3.2; C = heads * head_dim.
struct KdaWeights {
  Matrix q_proj, k_proj, v_proj, g_proj;  // [C, hidden]
  Vec q_conv, k_conv, v_conv;             // [C, kernel]
  Matrix f_a_proj, f_b_proj;              // [head_dim, hidden], [C, head_dim]
  Matrix b_proj;                          // [heads, hidden]
  Vec a_log;                              // [heads]
  Vec dt_bias;                            // [C]
  Vec o_norm;                             // [head_dim]
  Matrix o_proj;                          // [hidden, C]
};

// Section 3.3.
struct MlaWeights {
  Matrix q_a_proj, q_b_proj, kv_a_proj, kv_b_proj, g_proj, o_proj;
  Vec q_a_norm, kv_a_norm;
};

// Section 3.4.
struct MoeWeights {
  Matrix gate;               // [num_experts, hidden]
  Vec score_bias;            // [num_experts]
  Matrix latent_down;        // [latent, hidden]
  Vec latent_norm;           // [latent]
  Matrix latent_up;          // [hidden, latent]
  std::vector<Mlp> experts;  // [num_experts]
  Mlp shared;
};

struct LayerWeights {
  Vec input_norm, post_attention_norm;
  Vec attn_res_norm, attn_res_proj, mlp_res_norm, mlp_res_proj;
  std::optional<KdaWeights> kda;
  std::optional<MlaWeights> mla;
  std::optional<Mlp> dense;
  std::optional<MoeWeights> moe;
};

struct Weights {
  Config config;
  Matrix embed_tokens, lm_head;  // [vocab, hidden]
  Vec final_norm, output_res_norm, output_res_proj;
  std::vector<LayerWeights> layers;
};

Config LoadConfig(const std::string& dir);
// Reads every shard of the folder. Throws std::runtime_error for a missing or misshapen tensor.
Weights LoadWeights(const std::string& dir);

// Section 4: [rows, cols] from packed [rows, cols / 2] and scales [rows, cols / 32].
Matrix DequantizeMxfp4(const Tensor& packed, const Tensor& scale);

}  // namespace deltafin::reference
