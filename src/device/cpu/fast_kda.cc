#include "device/cpu/fast_device.h"

namespace deltafin {

void FastDevice::ShortConv(float* y, const float* x, const float* host_w, float* history, int64_t n,
                           int64_t channels) {
  Parallel(channels, kLanes, 1.0 + 0.7 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
    kernels_.short_conv(y, x, host_w, history, n, channels, begin, end);
  });
}

void FastDevice::L2Normalize(float* x, int64_t rows, int64_t dim, float scale) {
  Parallel(rows, 1, 10.0 + 0.2 * static_cast<double>(dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) kernels_.l2_normalize(x + row * dim, dim, scale);
  });
}

void FastDevice::KdaGates(float* f, float* beta, const float* host_a_log, const float* host_dt_bias,
                          int64_t n, int64_t heads, int64_t dim, float lower_bound) {
  kernels_.sigmoid(beta, beta, n * heads);
  Parallel(n * heads, 1, 1.2 * static_cast<double>(dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t head = row % heads;
      kernels_.kda_gate(f + row * dim, host_dt_bias + head * dim, host_a_log[head], dim,
                        lower_bound);
    }
  });
}

void FastDevice::KdaRecurrence(float* out, float* state, const float* q, const float* k,
                               const float* v, const float* alpha, const float* beta, int64_t n,
                               int64_t heads, int64_t dim) {
  const double ns = 0.3 * static_cast<double>(n * dim * dim);
  Parallel(heads, 1, ns, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const int64_t at = head * dim;
      KdaJob job;
      job.out = out + at;
      job.state = state + at * dim;
      job.q = q + at;
      job.k = k + at;
      job.v = v + at;
      job.alpha = alpha + at;
      job.beta = beta + head;
      job.n = n;
      job.stride = heads * dim;
      job.beta_stride = heads;
      job.dim = dim;
      kernels_.kda_recurrence(job);
    }
  });
}

void FastDevice::GatedRmsNorm(float* y, const float* gate, const float* host_w, int64_t rows,
                              int64_t dim, float eps) {
  Parallel(rows, 1, 10.0 + 0.8 * static_cast<double>(dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels_.gated_rms_norm(y + row * dim, gate + row * dim, host_w, dim, eps);
    }
  });
}

}  // namespace deltafin
