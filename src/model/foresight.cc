// Guessing what the next MoE layer will pick, so that the store may read it ahead.
#include <algorithm>

#include "model/model.h"
#include "model/pass.h"

namespace deltafin {
namespace {

// A guess looks at so many positions of a pass at most: together they pick more experts than the
// store will read ahead.
constexpr int64_t kMaxPositions = 8;

// picks: [n, top_k]. The first picks of every position come before the second ones.
std::vector<int32_t> DistinctByRank(const std::vector<int32_t>& picks, int64_t n, int64_t top_k) {
  std::vector<int32_t> ids;
  for (int64_t rank = 0; rank < top_k; ++rank) {
    for (int64_t pos = 0; pos < n; ++pos) {
      const int32_t id = picks[static_cast<size_t>(pos * top_k + rank)];
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
  }
  return ids;
}

}  // namespace

// Called at the end of `layer`: applies the next layer's own residual mix, norm and router to the
// prefix sum, which lacks only what the next attention will add. After the last layer that depends
// on a token that is not known yet: there, and where the router is not in RAM, the guess is what
// that layer picked last time.
void Model::HintNextExperts(Pass& pass, int64_t layer) {
  const int64_t next = (layer + 1) % config_.num_layers;
  if (!config_.IsMoe(next)) return;
  if (!experts_.WantsHint(next)) return;
  const PhaseScope phase(clock_, Phase::kForesight);
  const Matrix* router = spine_.ResidentRouter(next);
  const float* mix = spine_.ResidentVector(next, SpineVector::kMlpResQuery);
  const float* norm = spine_.ResidentVector(next, SpineVector::kPostAttentionNorm);
  const float* bias = spine_.ResidentVector(next, SpineVector::kRouterBias);
  if (next == 0 || !router || !mix || !norm || !bias) {
    experts_.Hint(next, {});
    return;
  }
  const int64_t hidden = config_.hidden_size;
  const int64_t top_k = config_.experts_per_token;
  const int64_t n = std::min(pass.n, kMaxPositions);  // the last ones
  const int64_t offset = (pass.n - n) * hidden;
  Workspace::Frame frame(workspace_);
  float* x = frame.Take(n * hidden);
  float* logits = frame.Take(n * config_.num_experts);
  device_.ResidualMix(x, pass.snapshots + offset, pass.n * hidden, pass.num_snapshots,
                      pass.prefix + offset, mix, n, hidden, config_.rms_norm_eps);  // [n, hidden]
  device_.RmsNorm(x, x, norm, n, hidden, hidden, config_.rms_norm_eps);
  device_.MatMul(*router, x, logits, config_.num_experts, n);  // [n, experts]
  std::vector<int32_t> picks(static_cast<size_t>(n * top_k));
  std::vector<float> weights(picks.size());
  device_.RouterTopK(
      picks.data(), weights.data(), logits, bias, n,
      {config_.num_experts, top_k, config_.moe_renormalize, config_.routed_scaling_factor});
  experts_.Hint(next, DistinctByRank(picks, n, top_k));
}

}  // namespace deltafin
