// config.json: the dimensions of a Kimi K3, checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltafin {

inline constexpr int64_t kMxfp4Block = 32;  // columns of an MXFP4 matrix that share a scale byte

// Names follow the file (spec section 1). Layers are 0-based here; the file counts from 1.
struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t attn_res_block_size = 0;
  float rms_norm_eps = 0;

  int64_t kda_heads = 0;
  int64_t kda_head_dim = 0;
  int64_t conv_kernel = 0;  // 4
  float gate_lower_bound = 0;
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
  int64_t latent_size = 0;  // routed_expert_hidden_size
  bool moe_renormalize = true;
  float routed_scaling_factor = 1;
  float situ_beta = 1;         // null or 0 in the file means 1
  float situ_linear_beta = 0;  // 0: no tanh on `up` (null in the file)

  int64_t bos_token_id = 0;
  int64_t eos_token_id = 0;  // ends a message; [EOS], which ends a document, is the tokenizer's
  int64_t max_position_embeddings = 0;

  // Reads and checks the text of a config.json. Throws Error(kCorrupt) for a missing or impossible
  // field, Error(kUnsupported) by name for a feature that K3 does not have. `name` is for messages.
  static ModelConfig Parse(std::string_view json, const std::string& name);

  bool IsMoe(int64_t layer) const {
    return layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
  }
  int64_t kda_width() const { return kda_heads * kda_head_dim; }
  int64_t shared_width() const { return num_shared_experts * moe_intermediate_size; }
  int64_t num_snapshots() const {
    return (num_layers + attn_res_block_size - 1) / attn_res_block_size;
  }
  int64_t num_mla_layers() const;
};

}  // namespace deltafin
