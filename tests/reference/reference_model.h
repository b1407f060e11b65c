// Kimi K3's text model in float64, written from the specification alone: plain loops, one token at
// a time, one function per formula. Shares no code with the engine. Exists to be read and to be
// compared with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reference/reference_weights.h"

namespace deltafin::reference {

using TokenId = int32_t;

// The picks of one router at one position, in descending order of biased score.
struct Routing {
  std::vector<int> experts;
  Vec weights;
  double margin = 0;  // biased score of the last pick minus that of the first expert not picked
};

struct StepResult {
  Vec logits;
  std::vector<Routing> routing;  // [num_layers]; no experts where the layer is dense

  // The smallest margin of any layer; infinity without MoE layers.
  double MinRouterMargin() const;
};

// Section 3.2: what a KDA layer keeps between tokens.
struct KdaState {
  std::vector<Vec> q_history, k_history, v_history;  // pre-conv projections, oldest first
  Vec state;                                         // [heads, key, value]
};

// Section 3.3 in the expanded form: keys and values of every earlier token.
struct MlaState {
  std::vector<Vec> k_nope;  // [heads * qk_nope_head_dim] each
  std::vector<Vec> k_pe;    // [qk_rope_head_dim] each
  std::vector<Vec> v;       // [heads * v_head_dim] each
};

// A token timeline. Copying it copies its state. The weights must outlive it.
class Session {
 public:
  explicit Session(const Weights& weights);

  // Appends a token and computes the logits after it. With `trace`, appends this position's values
  // to its tensors, named "L03.attn_in", ..., "out_res", "final_norm" (see NamesOfTrace below).
  StepResult Step(TokenId token, NamedTensors* trace = nullptr);

  // [heads, key, value] of a KDA layer.
  const Vec& kda_state(int64_t layer) const { return kda_[layer].state; }
  // [q/k/v, channel, kernel - 1], oldest first.
  Vec conv_state(int64_t layer) const;

 private:
  const Weights& weights_;
  std::vector<KdaState> kda_;  // [num_layers]
  std::vector<MlaState> mla_;  // [num_layers]
};

// NamesOfTrace. Of every layer: attn_in and mlp_in (the residual mixes), attn_normed and mlp_normed
// (after the norms), attn_out, mlp_out, hidden (the prefix sum after the layer), attn_res_probs and
// mlp_res_probs (oldest snapshot first, the prefix sum last; attn_res_probs is missing in layer 0).
// KDA: kda_q (not scaled), kda_k, kda_v, kda_g (log decay), kda_beta. MLA: mla_latent (normed),
// mla_krope. MoE: moe_latent, moe_agg (before its norm). At the end: out_res, out_res_probs,
// final_norm.

// All positions of `tokens` from an empty timeline.
std::vector<StepResult> RunTokens(const Weights& weights, std::span<const TokenId> tokens,
                                  NamedTensors* trace = nullptr);

struct GreedyResult {
  std::vector<TokenId> ids;
  Vec margins;              // best minus second best logit, per id
  Vec router_margins;       // smallest router margin of all positions before the choice
  std::vector<Vec> logits;  // the logits that each id was chosen from
};

// Appends `prompt`, then `count` times the token with the greatest logit (lowest id on ties).
GreedyResult Greedy(const Weights& weights, std::span<const TokenId> prompt, int64_t count);

}  // namespace deltafin::reference
