// Kimi Delta Attention, spec 3.2.
#include "device/cpu/plain_device.h"
#include "device/cpu/plain_math.h"

namespace deltafin {

// Step 2: causal depthwise convolution of width 4, then SiLU. The last tap is the current step.
void PlainDevice::ShortConv(float* y, const float* x, const float* host_w, float* history,
                            int64_t n, int64_t channels) {
  ForEach(channels, 64, [&](int64_t c) {
    const float* const w = host_w + c * 4;
    const auto s = [&](int64_t t) {
      return t < 0 ? history[(3 + t) * channels + c] : x[t * channels + c];
    };
    for (int64_t t = 0; t < n; ++t) {
      float sum = w[0] * s(t - 3);
      for (int64_t j = 1; j < 4; ++j) sum = std::fma(w[j], s(t - 3 + j), sum);
      y[t * channels + c] = plain::Silu(sum);
    }
    for (int64_t j = 0; j < 3; ++j) history[j * channels + c] = s(n - 3 + j);
  });
}

// Step 3: the sum of squares, not the mean, and eps inside the root.
void PlainDevice::L2Normalize(float* x, int64_t rows, int64_t dim, float scale) {
  ForEach(rows, 4, [&](int64_t row) {
    float* const v = x + row * dim;
    const float r = 1.0f / std::sqrt(plain::Dot(dim, v, v) + 1e-6f);
    for (int64_t d = 0; d < dim; ++d) v[d] = (v[d] * r) * scale;
  });
}

// Steps 4 and 5. A_log is per head; the lower bound multiplies a sigmoid, it does not clamp.
void PlainDevice::KdaGates(float* f, float* beta, const float* host_a_log,
                           const float* host_dt_bias, int64_t n, int64_t heads, int64_t dim,
                           float lower_bound) {
  ForEach(n * heads, 2, [&](int64_t row) {
    const int64_t head = row % heads;
    const float a = plain::Exp(host_a_log[head]);
    for (int64_t d = 0; d < dim; ++d) {
      const float z = f[row * dim + d] + host_dt_bias[head * dim + d];
      f[row * dim + d] = plain::Exp(lower_bound * plain::Sigmoid(a * z));
    }
    beta[row] = plain::Sigmoid(beta[row]);
  });
}

// Step 6, the gated delta rule. The columns of the state (value indices) do not see each other.
void PlainDevice::KdaRecurrence(float* out, float* state, const float* q, const float* k,
                                const float* v, const float* alpha, const float* beta, int64_t n,
                                int64_t heads, int64_t dim) {
  ForEach(heads, 1, [&](int64_t head) {
    for (int64_t t = 0; t < n; ++t) {
      const int64_t row = t * heads + head;
      const float* const q_t = q + row * dim;
      const float* const k_t = k + row * dim;
      const float* const decay = alpha + row * dim;
      for (int64_t col = 0; col < dim; ++col) {
        float* const s = state + head * dim * dim + col;  // s[i * dim]: key index i
        float read = 0.0f;                                // from the decayed state
        for (int64_t i = 0; i < dim; ++i) {
          s[i * dim] = s[i * dim] * decay[i];
          read = std::fma(k_t[i], s[i * dim], read);
        }
        const float delta = beta[row] * (v[row * dim + col] - read);
        float o = 0.0f;  // from the updated state
        for (int64_t i = 0; i < dim; ++i) {
          s[i * dim] = std::fma(k_t[i], delta, s[i * dim]);
          o = std::fma(q_t[i], s[i * dim], o);
        }
        out[row * dim + col] = o;
      }
    }
  });
}

// Step 7: the gate comes after the norm and its weight.
void PlainDevice::GatedRmsNorm(float* y, const float* gate, const float* host_w, int64_t rows,
                               int64_t dim, float eps) {
  ForEach(rows, 4, [&](int64_t row) {
    float* const v = y + row * dim;
    const float mean = plain::Dot(dim, v, v) / static_cast<float>(dim);
    const float r = 1.0f / std::sqrt(mean + eps);
    for (int64_t d = 0; d < dim; ++d) {
      v[d] = ((v[d] * r) * host_w[d]) * plain::Sigmoid(gate[row * dim + d]);
    }
  });
}

}  // namespace deltafin
