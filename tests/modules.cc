#include "modules.h"

#include <algorithm>
#include <cmath>

namespace deltafin {
namespace {

DeviceFloats Project(Device& device, const OwnedMatrix& w, const DeviceFloats& x, int64_t n) {
  DeviceFloats y(device, n * w.view.rows);
  device.MatMul(w.view, x.data(), y.data(), w.view.rows, n);
  return y;
}

int64_t Rows(const Floats& x, int64_t dim) { return static_cast<int64_t>(x.size()) / dim; }

}  // namespace

Floats MatMul(Device& device, const OwnedMatrix& w, const Floats& x) {
  return Project(device, w, DeviceFloats(device, x), Rows(x, w.view.cols)).Read();
}

Floats RmsNorm(Device& device, const Floats& x, const Floats& weight, float eps) {
  const auto dim = static_cast<int64_t>(weight.size());
  const DeviceFloats y(device, x);
  device.RmsNorm(y.data(), y.data(), weight.data(), Rows(x, dim), dim, dim, eps);
  return y.Read();
}

Floats ResidualMix(Device& device, const std::vector<Floats>& snapshots, const Floats& prefix,
                   const Tensor& norm, const Tensor& projection, float eps) {
  const Floats w = norm.floats(), q = projection.floats();
  Floats query, all;
  for (size_t d = 0; d < w.size(); ++d) query.push_back(w[d] * q[d]);
  for (const Floats& snapshot : snapshots) all.insert(all.end(), snapshot.begin(), snapshot.end());
  const auto dim = static_cast<int64_t>(w.size()), size = static_cast<int64_t>(prefix.size());
  const DeviceFloats sources(device, all), live(device, prefix), out(device, size);
  device.ResidualMix(out.data(), sources.data(), size, static_cast<int64_t>(snapshots.size()),
                     live.data(), query.data(), size / dim, dim, eps);
  return out.Read();
}

KdaModule::State KdaModule::NewState() const {
  const auto width = static_cast<size_t>(heads * dim);
  const Floats history(3 * width);
  return {Floats(width * static_cast<size_t>(dim)), {history, history, history}};
}

// Spec 3.2.
Floats KdaModule::Run(Device& device, const Floats& x, State* state) const {
  const int64_t n = Rows(x, q.view.cols), width = heads * dim;
  const DeviceFloats in(device, x);
  const auto projected = [&](const OwnedMatrix& w, const Floats& conv, Floats* history) {
    const DeviceFloats raw = Project(device, w, in, n), carried(device, *history);
    DeviceFloats y(device, n * width);
    device.ShortConv(y.data(), raw.data(), conv.data(), carried.data(), n, width);
    *history = carried.Read();
    return y;
  };
  const DeviceFloats query = projected(q, q_conv, &state->histories[0]);
  const DeviceFloats key = projected(k, k_conv, &state->histories[1]);
  const DeviceFloats value = projected(v, v_conv, &state->histories[2]);
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  device.L2Normalize(query.data(), n * heads, dim, scale);
  device.L2Normalize(key.data(), n * heads, dim, 1.0f);

  const DeviceFloats decay = Project(device, f_b, Project(device, f_a, in, n), n);
  const DeviceFloats beta = Project(device, b, in, n);
  device.KdaGates(decay.data(), beta.data(), a_log.data(), dt_bias.data(), n, heads, dim,
                  lower_bound);

  const DeviceFloats recurrent(device, state->recurrent), y(device, n * width);
  device.KdaRecurrence(y.data(), recurrent.data(), query.data(), key.data(), value.data(),
                       decay.data(), beta.data(), n, heads, dim);
  state->recurrent = recurrent.Read();
  const DeviceFloats gate = Project(device, g, in, n);
  device.GatedRmsNorm(y.data(), gate.data(), o_norm.data(), n * heads, dim, eps);
  return Project(device, o, y, n).Read();
}

// Spec 3.3, the absorbed form.
Floats MlaModule::Run(Device& device, const Floats& x, int64_t step, Floats* latents) const {
  const int64_t hidden = q_a.view.cols, n = Rows(x, hidden), latent_dim = shape.latent_dim();
  const int64_t heads = shape.num_heads;
  const DeviceFloats in(device, x);
  const DeviceFloats low_rank = Project(device, q_a, in, n);
  device.RmsNorm(low_rank.data(), low_rank.data(), q_a_norm.data(), n, q_a.view.rows, q_a.view.rows,
                 low_rank_eps);
  const DeviceFloats query = Project(device, q_b, low_rank, n);

  // The latent part of each row is normed, the shared key values behind it are not.
  Floats rows = Project(device, kv_a, in, n).Read();
  for (int64_t p = 0; p < n; ++p) {
    const auto row = rows.begin() + p * latent_dim;
    const Floats c = RmsNorm(device, Floats(row, row + shape.kv_lora), kv_a_norm, low_rank_eps);
    std::copy(c.begin(), c.end(), row);
  }
  *latents = rows;

  constexpr int64_t kPageTokens = 64;
  std::vector<DeviceBuffer> pages;
  std::vector<void*> addresses;
  for (int64_t token = 0; token < n; token += kPageTokens) {
    pages.emplace_back(device, static_cast<size_t>(kPageTokens * latent_dim) * sizeof(float));
    addresses.push_back(pages.back().address());
  }
  const LatentCacheView cache{addresses.data(), kPageTokens, CacheFormat::kF32};
  const DeviceFloats appended(device, rows), absorbed(device, n * heads * latent_dim);
  const DeviceFloats attended(device, n * heads * shape.kv_lora);
  device.MlaAbsorbQuery(absorbed.data(), kv_b.view, query.data(), n, shape);
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.query_dim())));
  for (int64_t first = 0; first < n; first += step) {
    const int64_t count = std::min(step, n - first);
    device.MlaAppend(cache, appended.data() + first * latent_dim, first, count, shape);
    device.MlaAttend(attended.data() + first * heads * shape.kv_lora,
                     absorbed.data() + first * heads * latent_dim, cache, first, count, shape,
                     scale);
  }
  const DeviceFloats y(device, n * heads * shape.v_dim);
  device.MlaExpandValue(y.data(), kv_b.view, attended.data(), n, shape);
  const DeviceFloats output_gate = Project(device, g, in, n);
  device.SigmoidGate(y.data(), output_gate.data(), n * heads * shape.v_dim);
  return Project(device, o, y, n).Read();
}

// Spec 3.4.
Floats MoeModule::Run(Device& device, const Floats& x, Trace* trace) const {
  const int64_t n = Rows(x, gate.view.cols), latent = down.view.rows, top_k = router.top_k;
  const DeviceFloats in(device, x);
  trace->ids.resize(static_cast<size_t>(n * top_k));
  trace->weights.resize(static_cast<size_t>(n * top_k));
  const DeviceFloats logits = Project(device, gate, in, n);
  device.RouterTopK(trace->ids.data(), trace->weights.data(), logits.data(), bias.data(), n,
                    router);

  const DeviceFloats z = Project(device, down, in, n);
  const DeviceFloats y(device, n * top_k * latent), sum(device, n * latent);
  std::vector<std::vector<int32_t>> in_rows(w1.size()), out_rows(w1.size());
  for (int32_t i = 0; i < n * top_k; ++i) {
    const auto expert = static_cast<size_t>(trace->ids[static_cast<size_t>(i)]);
    in_rows.at(expert).push_back(i / static_cast<int32_t>(top_k));
    out_rows.at(expert).push_back(i);
  }
  std::vector<ExpertTask> tasks;
  for (size_t e = 0; e < w1.size(); ++e) {
    if (in_rows[e].empty()) continue;
    tasks.push_back({{w1[e].view, w3[e].view, w2[e].view},
                     in_rows[e].data(),
                     out_rows[e].data(),
                     static_cast<int64_t>(in_rows[e].size())});
  }
  device.ExpertMlp(tasks, z.data(), y.data(), latent, situ);
  device.CombineExperts(sum.data(), y.data(), trace->weights.data(), n, top_k, latent);
  trace->latent = z.Read();
  trace->aggregate = sum.Read();
  device.RmsNorm(sum.data(), sum.data(), norm.data(), n, latent, latent, eps);
  const DeviceFloats out = Project(device, up, sum, n);

  const DeviceFloats hidden = Project(device, shared_gate, in, n);
  const DeviceFloats linear = Project(device, shared_up, in, n);
  device.SituGlu(hidden.data(), hidden.data(), linear.data(), n * shared_gate.view.rows, situ);
  const DeviceFloats shared = Project(device, shared_down, hidden, n);
  device.Add(out.data(), shared.data(), n * up.view.rows);
  return out.Read();
}

}  // namespace deltafin
