#include "reference/odd_checkpoints.h"

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace deltafin::reference {
namespace {

// K3's own proportions: more values in a head than heads, so A_log is padded (5 used of 32).
CheckpointOptions FewWideHeads() {
  CheckpointOptions o;
  o.seed = 111;
  o.hidden_size = 96;
  o.num_layers = 7;
  o.attn_res_block_size = 3;
  o.mla_layers = {3, 5, 6};
  o.kda_heads = 5;
  o.kda_head_dim = 32;
  return o;
}

// More heads than values in a head: A_log has one entry per head and no padding.
CheckpointOptions ManyNarrowHeads() {
  CheckpointOptions o;
  o.seed = 12;
  o.hidden_size = 80;
  o.kda_heads = 12;
  o.kda_head_dim = 8;
  o.mla_heads = 3;
  return o;
}

// A_log without padding though head_dim is larger; every layer is a block; hidden not a multiple of
// 16, vocabulary odd.
CheckpointOptions EveryLayerABlock() {
  CheckpointOptions o;
  o.seed = 113;
  o.hidden_size = 72;
  o.num_layers = 6;
  o.attn_res_block_size = 1;
  o.mla_layers = {2, 5};
  o.kda_heads = 3;
  o.kda_head_dim = 24;
  o.a_log_size = ALogSize::kHeads;
  o.num_merges = 7;
  return o;
}

// Two dense layers at the start, then MoE in every second layer; the depth is no multiple of the
// block.
CheckpointOptions SparseMoe() {
  CheckpointOptions o;
  o.seed = 114;
  o.num_layers = 8;
  o.attn_res_block_size = 5;
  o.mla_layers = {3, 7};
  o.first_k_dense_replace = 2;
  o.moe_layer_freq = 2;
  o.dense_intermediate_size = 88;
  return o;
}

// Scaling and missing renormalisation act before the latent norm, so almost only through its eps:
// a large eps makes them visible.
CheckpointOptions UnnormalisedRouter() {
  CheckpointOptions o;
  o.seed = 115;
  o.rms_norm_eps = 0.05;
  o.moe_renormalize = false;
  o.routed_scaling_factor = 0.3;
  return o;
}

// Scaling with renormalisation, top-3 of 12, one shared expert, no tanh on `up`.
CheckpointOptions ScaledRouter() {
  CheckpointOptions o;
  o.seed = 16;
  o.rms_norm_eps = 0.05;
  o.routed_scaling_factor = 2.5;
  o.num_experts = 12;
  o.experts_per_token = 3;
  o.num_shared_experts = 1;
  o.situ_linear_beta = std::nullopt;
  return o;
}

// With one pick there is no renormalisation; beta null means 1; a narrow linear beta.
CheckpointOptions TopOne() {
  CheckpointOptions o;
  o.seed = 17;
  o.rms_norm_eps = 0.01;
  o.experts_per_token = 1;
  o.situ_beta = std::nullopt;
  o.situ_linear_beta = 1.25;
  o.latent_size = 96;
  return o;
}

// Low ranks and head parts that are odd and all different; values wider than keys.
CheckpointOptions OddLowRanks() {
  CheckpointOptions o;
  o.seed = 118;
  o.hidden_size = 104;
  o.num_layers = 6;
  o.attn_res_block_size = 4;
  o.mla_layers = {1, 3, 5};
  o.mla_heads = 5;
  o.q_lora_rank = 27;
  o.kv_lora_rank = 19;
  o.qk_nope_head_dim = 12;
  o.qk_rope_head_dim = 6;
  o.v_head_dim = 21;
  o.moe_intermediate_size = 64;
  return o;
}

// Attention starts with MLA and ends with KDA, one block holds all layers, MoE from layer 0 on,
// other constants, tensors at odd addresses.
CheckpointOptions MlaFirst() {
  CheckpointOptions o;
  o.seed = 19;
  o.num_layers = 4;
  o.attn_res_block_size = 12;
  o.mla_layers = {0, 1};
  o.first_k_dense_replace = 0;
  o.gate_lower_bound = -1.5;
  o.rms_norm_eps = 1e-3;
  o.situ_beta = 1.5;
  o.situ_linear_beta = 3.0;
  o.header_spaces = 3;
  return o;
}

// Many experts, so that decimal-string order differs much from numeric order; three shared ones.
CheckpointOptions ManyExperts() {
  CheckpointOptions o;
  o.seed = 220;
  o.num_experts = 112;
  o.experts_per_token = 7;
  o.num_shared_experts = 3;
  o.latent_size = 64;
  return o;
}

// Nothing to select.
CheckpointOptions AllExperts() {
  CheckpointOptions o;
  o.seed = 21;
  o.num_experts = 4;
  o.experts_per_token = 4;
  return o;
}

}  // namespace

std::vector<OddCheckpoint> OddCheckpoints() {
  return {{"FewWideHeads", FewWideHeads()},
          {"ManyNarrowHeads", ManyNarrowHeads()},
          {"EveryLayerABlock", EveryLayerABlock()},
          {"SparseMoe", SparseMoe()},
          {"UnnormalisedRouter", UnnormalisedRouter()},
          {"ScaledRouter", ScaledRouter()},
          {"TopOne", TopOne()},
          {"OddLowRanks", OddLowRanks()},
          {"MlaFirst", MlaFirst()},
          {"ManyExperts", ManyExperts()},
          {"AllExperts", AllExperts()}};
}

std::vector<int32_t> RandomTokens(const CheckpointOptions& options, int64_t count) {
  std::vector<int32_t> tokens;
  uint64_t state = options.seed;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
    tokens.push_back(static_cast<int32_t>((state >> 33) % options.vocab_size()));
  }
  return tokens;
}

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "deltafin-test-XXXXXX").string();
  if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp " + path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // a leftover in the temporary folder harms nobody
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace deltafin::reference
