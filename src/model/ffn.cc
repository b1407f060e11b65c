// The dense MLP of the first layers and the latent mixture of experts (spec 3.4).
#include <algorithm>

#include "model/model.h"
#include "model/pass.h"

namespace deltafin {
namespace {

// Whether a keeper has what a layer's shared part reads: the experts' input and the shared ones.
bool SharedIsKept(const SpineLease& spine) {
  return spine.IsKept(SpineMatrix::kRoutedDown) && spine.IsKept(SpineMatrix::kSharedGate) &&
         spine.IsKept(SpineMatrix::kSharedUp) && spine.IsKept(SpineMatrix::kSharedDown);
}

}  // namespace

// x: [n, hidden], already normed; out: [n, hidden].
void Model::DenseBlock(Pass& pass, SpineLease& spine, const float* x, float* out) {
  const int64_t n = pass.n;
  const int64_t width = config_.dense_intermediate_size;
  const PhaseScope phase(clock_, Phase::kDense);
  Workspace::Frame frame(workspace_);
  float* gate = frame.Take(n * width);
  float* up = frame.Take(n * width);
  Linear(spine, SpineMatrix::kDenseGate, x, gate, width, n);  // [n, width]
  Linear(spine, SpineMatrix::kDenseUp, x, up, width, n);      // [n, width]
  device_.SituGlu(gate, gate, up, n * width, {config_.situ_beta, config_.situ_linear_beta});
  Linear(spine, SpineMatrix::kDenseDown, gate, out, config_.hidden_size, n);  // [n, hidden]
}

// x: [n, hidden], already normed; out: [n, hidden].
void Model::MoeBlock(Pass& pass, int64_t layer, SpineLease& spine, const float* x, float* out) {
  const int64_t n = pass.n;
  const int64_t hidden = config_.hidden_size;
  const int64_t latent = config_.latent_size;
  const int64_t top_k = config_.experts_per_token;
  const int64_t shared_width = config_.shared_width();
  const PhaseScope phase(clock_, Phase::kShared);
  Workspace::Frame frame(workspace_);
  float* router_logits = frame.Take(n * config_.num_experts);
  float* z = frame.Take(n * latent);
  float* expert_out = frame.Take(n * top_k * latent);
  float* aggregate = frame.Take(n * latent);
  float* gate = frame.Take(n * shared_width);
  float* up = frame.Take(n * shared_width);
  float* shared = frame.Take(n * hidden);

  Linear(spine, SpineMatrix::kRouter, x, router_logits, config_.num_experts, n);  // [n, experts]
  std::unique_ptr<ExpertBatch> batch;  // null until the picks are there
  const auto run_some = [&] { return batch && RunSomeExperts(pass, *batch, z, expert_out); };
  const auto compute_shared = [&] {
    Linear(spine, SpineMatrix::kRoutedDown, x, z, latent, n);  // [n, latent]
    device_.StartExperts(z, n, latent);
    // The disk has the experts before what is not in RAM of the shared ones: where that is waited
    // for, experts compute meanwhile.
    Linear(spine, SpineMatrix::kSharedGate, x, gate, shared_width, n, run_some);
    Linear(spine, SpineMatrix::kSharedUp, x, up, shared_width, n, run_some);  // [n, shared_width]
    device_.SituGlu(gate, gate, up, n * shared_width,
                    {config_.situ_beta, config_.situ_linear_beta});
    Linear(spine, SpineMatrix::kSharedDown, gate, shared, hidden, n, run_some);  // [n, hidden]
  };

  const float* const bias = spine.Vector(SpineVector::kRouterBias);
  const RouterParams params{config_.num_experts, top_k, config_.moe_renormalize,
                            config_.routed_scaling_factor};
  std::vector<int32_t> ids(static_cast<size_t>(n * top_k));
  std::vector<float> weights(ids.size());
  // A device that has all it needs computes on while the picks are on their way. Nothing else may
  // come before the reads of the experts.
  const bool goes_on = SharedIsKept(spine) && device_.StartRouter(router_logits, bias, n, params);
  if (goes_on) compute_shared();
  device_.RouterTopK(ids.data(), weights.data(), router_logits, bias, n, params);
  if (pass.hooks->trace != nullptr) pass.hooks->trace->OnPicks(layer, ids, weights, top_k);

  // All reads start now; the shared experts and the latent projection compute while the disk works.
  batch = RequestExperts(pass, layer, ids);
  if (!goes_on) compute_shared();
  while (run_some()) {  // expert_out: [n, top_k, latent]
  }
  device_.CombineExperts(aggregate, expert_out, weights.data(), n, top_k, latent);  // [n, latent]
  // The norm comes after the weighted sum and before the up projection (spec 0, trap 8).
  device_.RmsNorm(aggregate, aggregate, spine.Vector(SpineVector::kRoutedNorm), n, latent, latent,
                  config_.rms_norm_eps);
  Linear(spine, SpineMatrix::kRoutedUp, aggregate, out, hidden, n);  // [n, hidden]
  device_.Add(out, shared, n * hidden);
}

// Groups the picks of all positions by expert and asks for each expert once.
std::unique_ptr<ExpertBatch> Model::RequestExperts(Pass& pass, int64_t layer,
                                                   std::span<const int32_t> ids) {
  const int32_t top_k = static_cast<int32_t>(config_.experts_per_token);
  pass.picks_of.assign(static_cast<size_t>(config_.num_experts), {});
  for (size_t pick = 0; pick < ids.size(); ++pick) {
    pass.picks_of[ids[pick]].in_rows.push_back(static_cast<int32_t>(pick) / top_k);
    pass.picks_of[ids[pick]].out_rows.push_back(static_cast<int32_t>(pick));
  }
  pass.distinct.assign(ids.begin(), ids.end());
  std::sort(pass.distinct.begin(), pass.distinct.end());
  pass.distinct.erase(std::unique(pass.distinct.begin(), pass.distinct.end()), pass.distinct.end());
  return experts_.Request(layer, pass.distinct);
}

// Waits for experts and computes those that have come; false when none is left. Each writes rows of
// y that are its own, so their order does not matter. y: [n * top_k, latent].
bool Model::RunSomeExperts(Pass& pass, ExpertBatch& batch, const float* z, float* y) {
  const PhaseScope phase(clock_, Phase::kExperts);
  const std::vector<size_t> ready = batch.NextReady();
  if (ready.empty()) return false;
  std::vector<ExpertTask> tasks;
  for (size_t i : ready) {
    const Pass::Picks& picks = pass.picks_of[pass.distinct[i]];
    tasks.push_back({batch.weights(i), picks.in_rows.data(), picks.out_rows.data(),
                     static_cast<int64_t>(picks.in_rows.size())});
  }
  device_.ExpertMlp(tasks, z, y, config_.latent_size,
                    {config_.situ_beta, config_.situ_linear_beta});
  device_.Synchronize();  // the slots may be reused after Release
  for (size_t i : ready) batch.Release(i);
  return true;
}

}  // namespace deltafin
