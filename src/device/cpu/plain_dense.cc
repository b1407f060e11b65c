#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "device/cpu/plain_device.h"
#include "device/cpu/plain_math.h"

namespace deltafin {
namespace plain {
namespace {

// Spec 4: bit 3 of a code is the sign.
constexpr float kE2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// 2^(byte - 127); 2^-127 is subnormal.
float E8m0(uint8_t byte) {
  return std::bit_cast<float>(byte == 0 ? uint32_t{1} << 22 : uint32_t{byte} << 23);
}

// Lane i of a group of 128 weights owns the eight from 8i on, which share a scale. Columns come in
// blocks of 32, so the eight are all there or all padding.
float DotMxfp4(const Matrix& w, int64_t row, const float* x) {
  const std::byte* const codes = w.data + row * w.row_bytes();
  const std::byte* const scales = w.scales + row * (w.cols / 32);
  float a[kLanes] = {};
  int64_t k = 0;
  for (; k < w.cols; k += 8) {
    float p = 0.0f;
    for (int64_t j = 0; j < 8; ++j) {
      const auto pair = std::to_integer<unsigned>(codes[(k + j) / 2]);
      const float c = kE2m1[j % 2 == 0 ? pair & 15 : pair >> 4];
      p = j == 0 ? c * x[k] : std::fma(c, x[k + j], p);
    }
    const float s = E8m0(std::to_integer<uint8_t>(scales[k / 32]));
    a[k / 8 % kLanes] = std::fma(p, s, a[k / 8 % kLanes]);
  }
  for (; k % 128 != 0; k += 8) a[k / 8 % kLanes] = std::fma(0.0f, E8m0(0), a[k / 8 % kLanes]);
  return Sum16(a);
}

}  // namespace

float DotRow(const Matrix& w, int64_t row, const float* x) {
  const std::byte* const begin = w.data + row * w.row_bytes();
  const auto input = [x](int64_t k) { return x[k]; };
  switch (w.format) {
    case WeightFormat::kF32:
      return DotOf(
          w.cols, [&](int64_t k) { return Load<float>(begin, k); }, input);
    case WeightFormat::kBf16:
      return DotOf(
          w.cols, [&](int64_t k) { return Bf16ToFloat(Load<uint16_t>(begin, k)); }, input);
    case WeightFormat::kInt8:
      return DotOf(
                 w.cols, [&](int64_t k) { return static_cast<float>(Load<int8_t>(begin, k)); },
                 input) *
             RowScale(w, row);
    case WeightFormat::kMxfp4:
      return DotMxfp4(w, row, x);
  }
  return 0.0f;
}

}  // namespace plain

std::string PlainDevice::Describe() const {
  const int threads = pool().num_threads();
  return format("cpu (plain, {} thread{})", threads, threads == 1 ? "" : "s");
}

void PlainDevice::MatMul(const Matrix& w, const float* x, float* y, int64_t y_stride, int64_t n) {
  DF_CHECK(w.format != WeightFormat::kMxfp4 || w.cols % 32 == 0);
  ForEach(w.rows, 8, [&](int64_t row) {
    for (int64_t p = 0; p < n; ++p) y[p * y_stride + row] = plain::DotRow(w, row, x + p * w.cols);
  });
}

void PlainDevice::Add(float* dst, const float* src, int64_t count) {
  ForEach(count, 4096, [&](int64_t i) { dst[i] += src[i]; });
}

// Spec 3: RMS(x; w, eps) = w * x / sqrt(mean(x^2) + eps).
void PlainDevice::RmsNorm(float* y, const float* x, const float* host_w, int64_t n, int64_t dim,
                          int64_t stride, float eps) {
  ForEach(n, 1, [&](int64_t p) {
    const float* const in = x + p * stride;
    const float mean = plain::Dot(dim, in, in) / static_cast<float>(dim);
    const float r = 1.0f / std::sqrt(mean + eps);
    for (int64_t d = 0; d < dim; ++d) y[p * stride + d] = (in[d] * r) * host_w[d];
  });
}

// Spec 3.1, attention residuals: the scores see normalised sources, the sum the raw ones.
void PlainDevice::ResidualMix(float* out, const float* snapshots, int64_t snapshot_stride,
                              int64_t num_snapshots, const float* prefix, const float* host_query,
                              int64_t n, int64_t dim, float eps) {
  DF_CHECK(num_snapshots >= 1);
  const int64_t num_sources = num_snapshots + 1;
  std::vector<float> all_scores(static_cast<size_t>(n * num_sources));
  ForEach(n, 1, [&](int64_t p) {
    const auto source = [&](int64_t i) {
      return (i < num_snapshots ? snapshots + i * snapshot_stride : prefix) + p * dim;
    };
    float* const s = all_scores.data() + p * num_sources;
    for (int64_t i = 0; i < num_sources; ++i) {
      const float* const v = source(i);
      const float mean = plain::Dot(dim, v, v) / static_cast<float>(dim);
      s[i] = plain::Dot(dim, v, host_query) * (1.0f / std::sqrt(mean + eps));
    }
    const float m = *std::max_element(s, s + num_sources);
    float l = 0.0f;
    for (int64_t i = 0; i < num_sources; ++i) {
      s[i] = plain::Exp(s[i] - m);
      l = i == 0 ? s[i] : l + s[i];
    }
    for (int64_t i = 0; i < num_sources; ++i) {
      const float weight = s[i] / l;
      const float* const v = source(i);
      float* const o = out + p * dim;
      for (int64_t d = 0; d < dim; ++d)
        o[d] = i == 0 ? weight * v[d] : std::fma(weight, v[d], o[d]);
    }
  });
}

// Spec 3.4.
void PlainDevice::SituGlu(float* out, const float* gate, const float* up, int64_t count,
                          SituParams params) {
  ForEach(count, 256, [&](int64_t i) { out[i] = plain::Situ(gate[i], up[i], params); });
}

void PlainDevice::SigmoidGate(float* y, const float* gate, int64_t count) {
  ForEach(count, 256, [&](int64_t i) { y[i] = y[i] * plain::Sigmoid(gate[i]); });
}

}  // namespace deltafin
