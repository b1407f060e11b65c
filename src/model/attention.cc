// The two kinds of attention of Kimi K3: KDA (spec 3.2) and MLA (spec 3.3).
#include <cmath>

#include "model/model.h"
#include "model/pass.h"

namespace deltafin {
namespace {

// Calls part(first, count, capture) for the parts of a run between which its state is captured, the
// last one with null.
template <class Part>
void ForEachPart(const Run& run, Part&& part) {
  int64_t begin = 0;
  for (StateCapture* capture : run.captures) {
    const int64_t end = capture->num_tokens() - run.state->num_tokens();
    part(begin, end - begin, capture);
    begin = end;
  }
  part(begin, std::ssize(run.tokens) - begin, nullptr);
}

MlaShape ShapeOf(const ModelConfig& c) {
  return {c.mla_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim, c.kv_lora_rank};
}

}  // namespace

// x: [n, hidden], already normed; out: [n, hidden].
void Model::KdaBlock(Pass& pass, int64_t layer, SpineLease& spine, const float* x, float* out) {
  const int64_t n = pass.n;
  const int64_t heads = config_.kda_heads;
  const int64_t dim = config_.kda_head_dim;
  const int64_t width = config_.kda_width();
  const PhaseScope phase(clock_, Phase::kKda);
  Workspace::Frame frame(workspace_);
  float* projected[3];
  for (float*& array : projected) array = frame.Take(n * width);
  float* q = frame.Take(n * width);
  float* k = frame.Take(n * width);
  float* v = frame.Take(n * width);
  float* alpha = frame.Take(n * width);
  float* gate = frame.Take(n * width);
  float* low_rank = frame.Take(n * dim);
  float* beta = frame.Take(n * heads);

  // All projections first: a device that computes them apart is waited for once.
  Linear(spine, SpineMatrix::kQProj, x, projected[0], width, n);   // [n, heads * dim]
  Linear(spine, SpineMatrix::kKProj, x, projected[1], width, n);   // [n, heads * dim]
  Linear(spine, SpineMatrix::kVProj, x, projected[2], width, n);   // [n, heads * dim]
  Linear(spine, SpineMatrix::kFaProj, x, low_rank, dim, n);        // [n, dim]
  Linear(spine, SpineMatrix::kFbProj, low_rank, alpha, width, n);  // [n, heads * dim]
  Linear(spine, SpineMatrix::kBProj, x, beta, heads, n);           // [n, heads]
  Linear(spine, SpineMatrix::kGProj, x, gate, width, n);           // [n, heads * dim]

  // Causal convolution over the sequence, SiLU.
  const auto convolve = [&](SpineVector conv, int which, float* y) {
    for (size_t r = 0; r < pass.runs.size(); ++r) {
      const int64_t offset = pass.first_row[r] * width;
      Rollback* rollback = pass.runs[r].rollback;
      if (rollback) rollback->KeepProjection(layer, which, projected[which] + offset);
      const SequenceState& state = *pass.runs[r].state;
      ForEachPart(pass.runs[r], [&](int64_t begin, int64_t count, StateCapture* capture) {
        const int64_t at = offset + begin * width;
        device_.ShortConv(y + at, projected[which] + at, spine.Vector(conv),
                          state.conv_history(layer, which), count, width);
        if (capture) capture->KeepHistory(state, layer, which);
      });
    }
  };
  convolve(SpineVector::kQConv, 0, q);
  convolve(SpineVector::kKConv, 1, k);
  convolve(SpineVector::kVConv, 2, v);
  const float q_scale = 1.0f / std::sqrt(static_cast<float>(dim));
  device_.L2Normalize(q, n * heads, dim, q_scale);
  device_.L2Normalize(k, n * heads, dim, 1.0f);
  device_.KdaGates(alpha, beta, spine.Vector(SpineVector::kALog),
                   spine.Vector(SpineVector::kDtBias), n, heads, dim, config_.gate_lower_bound);

  float* o = projected[0];  // [n, heads * dim]; the projections are used up
  for (size_t r = 0; r < pass.runs.size(); ++r) {
    const int64_t row = pass.first_row[r];
    const int64_t offset = row * width;
    Rollback* rollback = pass.runs[r].rollback;
    if (rollback) {
      rollback->KeepRecurrence(layer, k + offset, v + offset, alpha + offset, beta + row * heads);
    }
    const SequenceState& state = *pass.runs[r].state;
    ForEachPart(pass.runs[r], [&](int64_t begin, int64_t count, StateCapture* capture) {
      const int64_t at = offset + begin * width;
      device_.KdaRecurrence(o + at, state.kda_state(layer), q + at, k + at, v + at, alpha + at,
                            beta + (row + begin) * heads, count, heads, dim);
      if (capture) capture->KeepKda(state, layer);
    });
  }
  device_.GatedRmsNorm(o, gate, spine.Vector(SpineVector::kONorm), n * heads, dim,
                       config_.rms_norm_eps);
  Linear(spine, SpineMatrix::kOProj, o, out, config_.hidden_size, n);  // [n, hidden]
}

// x: [n, hidden], already normed; out: [n, hidden]. Absorbed form: keys and values are never
// expanded, the cache holds the normed latent and the shared k_pe.
void Model::MlaBlock(Pass& pass, int64_t layer, SpineLease& spine, const float* x, float* out) {
  // The official code builds these two norms without passing eps: its default, not rms_norm_eps.
  constexpr float kLowRankEps = 1e-6f;
  const int64_t n = pass.n;
  const MlaShape shape = ShapeOf(config_);
  const int64_t query_width = shape.num_heads * shape.query_dim();
  const int64_t value_width = shape.num_heads * shape.v_dim;
  const PhaseScope phase(clock_, Phase::kMla);
  Workspace::Frame frame(workspace_);
  float* q_latent = frame.Take(n * config_.q_lora_rank);
  float* q = frame.Take(n * query_width);
  float* latent = frame.Take(n * shape.latent_dim());
  float* absorbed = frame.Take(n * shape.num_heads * shape.latent_dim());
  float* attended = frame.Take(n * shape.num_heads * shape.kv_lora);
  float* o = frame.Take(n * value_width);
  float* gate = frame.Take(n * value_width);

  Linear(spine, SpineMatrix::kQaProj, x, q_latent, config_.q_lora_rank, n);  // [n, q_lora]
  device_.RmsNorm(q_latent, q_latent, spine.Vector(SpineVector::kQaNorm), n, config_.q_lora_rank,
                  config_.q_lora_rank, kLowRankEps);
  Linear(spine, SpineMatrix::kQbProj, q_latent, q, query_width, n);        // [n, heads, 192]
  Linear(spine, SpineMatrix::kKvaProj, x, latent, shape.latent_dim(), n);  // [n, kv_lora + rope]
  // Only the latent is normed, k_pe is kept as it is.
  device_.RmsNorm(latent, latent, spine.Vector(SpineVector::kKvaNorm), n, shape.kv_lora,
                  shape.latent_dim(), kLowRankEps);

  const Matrix kv_b = spine.Whole(SpineMatrix::kKvbProj);
  device_.MlaAbsorbQuery(absorbed, kv_b, q, n, shape);  // [n, heads, kv_lora + rope]
  for (size_t r = 0; r < pass.runs.size(); ++r) {
    AttendRun(pass, r, layer, latent, absorbed, attended);  // [n, heads, kv_lora]
  }
  device_.MlaExpandValue(o, kv_b, attended, n, shape);          // [n, heads, v]
  Linear(spine, SpineMatrix::kGProj, x, gate, value_width, n);  // [n, heads * v]
  device_.SigmoidGate(o, gate, n * value_width);
  Linear(spine, SpineMatrix::kOProj, o, out, config_.hidden_size, n);  // [n, hidden]
}

// Appends the run's tokens to its cache and lets them attend: the rows of run r of attended, from
// its rows of latent and absorbed.
void Model::AttendRun(Pass& pass, size_t r, int64_t layer, const float* latent,
                      const float* absorbed, float* attended) {
  const MlaShape shape = ShapeOf(config_);
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.query_dim()));
  SequenceState& state = *pass.runs[r].state;
  const int64_t row = pass.first_row[r];
  const int64_t first = state.num_tokens();
  const auto count = std::ssize(pass.runs[r].tokens);
  float* const out = attended + row * shape.num_heads * shape.kv_lora;
  try {
    const LatentCacheView cache = state.BeginAppend(layer, first, count);
    device_.MlaAppend(cache, latent + row * shape.latent_dim(), first, count, shape);
    device_.MlaAttend(out, absorbed + row * shape.num_heads * shape.latent_dim(), cache, first,
                      count, shape, scale);  // [count, heads, kv_lora]
    state.EndAppend(layer, first, count);
  } catch (const Error& error) {
    if (!pass.hooks->on_run_failed) throw;
    pass.hooks->on_run_failed(pass.index[r], error);
    pass.failed.push_back(r);
    // Until the run leaves, before the next layer, its rows are computed as if nothing was seen.
    const std::vector<float> zeros(static_cast<size_t>(count * shape.num_heads * shape.kv_lora));
    device_.ToDevice(out, zeros.data(), zeros.size() * sizeof(float));
  }
}

}  // namespace deltafin
