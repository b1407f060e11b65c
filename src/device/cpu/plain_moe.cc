// The latent mixture of experts, spec 3.4.
#include <vector>

#include "base/check.h"
#include "device/cpu/plain_device.h"
#include "device/cpu/plain_math.h"

namespace deltafin {

// The bias decides who is picked, never with which weight.
void PlainDevice::RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                             const float* host_bias, int64_t n, const RouterParams& params) {
  DF_CHECK(params.top_k >= 1 && params.top_k <= params.num_experts);
  const auto num_experts = static_cast<size_t>(params.num_experts);
  std::vector<float> score(num_experts);
  std::vector<bool> picked(num_experts);
  for (int64_t p = 0; p < n; ++p) {
    for (size_t e = 0; e < num_experts; ++e) {
      score[e] = plain::Sigmoid(logits[p * params.num_experts + static_cast<int64_t>(e)]);
    }
    picked.assign(num_experts, false);
    int32_t* const ids = host_ids + p * params.top_k;
    float* const weights = host_weights + p * params.top_k;
    float sum = 0.0f;
    for (int64_t pick = 0; pick < params.top_k; ++pick) {
      size_t best = num_experts;
      for (size_t e = 0; e < num_experts; ++e) {
        if (picked[e]) continue;
        if (best == num_experts || score[e] + host_bias[e] > score[best] + host_bias[best])
          best = e;
      }
      picked[best] = true;
      ids[pick] = static_cast<int32_t>(best);
      weights[pick] = score[best];
      sum = sum + score[best];
    }
    const bool renormalize = params.renormalize && params.top_k > 1;
    for (int64_t pick = 0; pick < params.top_k; ++pick) {
      if (renormalize) weights[pick] = weights[pick] / (sum + 1e-20f);
      weights[pick] = weights[pick] * params.scaling_factor;
    }
  }
}

void PlainDevice::ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y,
                            int64_t latent, SituParams params) {
  std::vector<float> hidden;
  for (const ExpertTask& task : tasks) {
    const auto& [w1, w3, w2] = task.weights;
    DF_CHECK(w1.cols == latent && w3.cols == latent && w2.rows == latent);
    DF_CHECK(w1.rows == w2.cols && w3.rows == w2.cols);
    hidden.resize(static_cast<size_t>(w1.rows));
    for (int64_t i = 0; i < task.num_rows; ++i) {
      const float* const in = z + task.in_rows[i] * latent;
      float* const out = y + task.out_rows[i] * latent;
      ForEach(w1.rows, 8, [&, &gate = w1, &up = w3](int64_t row) {
        hidden[static_cast<size_t>(row)] =
            plain::Situ(plain::DotRow(gate, row, in), plain::DotRow(up, row, in), params);
      });
      ForEach(latent, 8,
              [&, &down = w2](int64_t row) { out[row] = plain::DotRow(down, row, hidden.data()); });
    }
  }
}

void PlainDevice::CombineExperts(float* out, const float* y, const float* host_weights, int64_t n,
                                 int64_t top_k, int64_t dim) {
  ForEach(n, 1, [&](int64_t p) {
    const float* const w = host_weights + p * top_k;
    const float* const in = y + p * top_k * dim;
    for (int64_t d = 0; d < dim; ++d) {
      float sum = w[0] * in[d];
      for (int64_t j = 1; j < top_k; ++j) sum = std::fma(w[j], in[j * dim + d], sum);
      out[p * dim + d] = sum;
    }
  });
}

}  // namespace deltafin
