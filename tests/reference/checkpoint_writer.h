// Writes small random checkpoints in Kimi K3's exact file layout (specification, section 2), with
// whatever dimensions a test wants.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deltafin::reference {

enum class ALogSize : uint8_t {
  kPadded,  // head_dim entries, zeros after those of the heads, as in the release
  kHeads,   // exactly num_heads
};

struct CheckpointOptions {
  uint64_t seed = 1;

  int64_t hidden_size = 64;
  int64_t num_layers = 5;
  int64_t attn_res_block_size = 2;
  std::vector<int64_t> mla_layers = {3, 4};  // 0-based
  double rms_norm_eps = 1e-5;

  int64_t kda_heads = 4;
  int64_t kda_head_dim = 16;
  ALogSize a_log_size = ALogSize::kPadded;
  double gate_lower_bound = -5.0;

  int64_t mla_heads = 4;
  int64_t q_lora_rank = 32;
  int64_t kv_lora_rank = 32;
  int64_t qk_nope_head_dim = 16;
  int64_t qk_rope_head_dim = 8;
  int64_t v_head_dim = 16;

  int64_t dense_intermediate_size = 96;
  int64_t first_k_dense_replace = 1;
  int64_t moe_layer_freq = 1;
  int64_t num_experts = 16;
  int64_t experts_per_token = 4;
  int64_t num_shared_experts = 2;
  int64_t moe_intermediate_size = 32;  // multiple of 32: MXFP4 blocks
  int64_t latent_size = 32;            // likewise
  bool moe_renormalize = true;
  double routed_scaling_factor = 1.0;
  std::optional<double> situ_beta = 4.0;          // null in the file when empty
  std::optional<double> situ_linear_beta = 25.0;  // likewise

  int64_t num_merges = 20;    // two-letter tokens after the 256 bytes, at most 676
  int64_t header_spaces = 0;  // added to every shard header: tensors at odd addresses

  int64_t num_ranks() const { return 256 + num_merges; }
  int64_t vocab_size() const { return num_ranks() + 256; }
  bool IsMla(int64_t layer) const;
  bool IsMoe(int64_t layer) const {
    return layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
  }
};

// Creates `dir` and everything in it: config.json, generation_config.json, tiktoken.model,
// tokenizer_config.json, model.safetensors.index.json and num_layers + 1 shards. The bytes depend
// on the options alone. Weights are scaled so that activations stay near 1 and logits near 2.
void WriteCheckpoint(const CheckpointOptions& options, const std::string& dir);

// The texts of the small files (checkpoint_files.cc).
std::string ConfigJson(const CheckpointOptions& options);
std::string GenerationConfigJson(const CheckpointOptions& options);
std::string TiktokenModel(const CheckpointOptions& options);
std::string TokenizerConfigJson(const CheckpointOptions& options);

}  // namespace deltafin::reference
