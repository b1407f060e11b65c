// The arithmetic of docs/numerics.md, one element at a time: the form that defines the bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/bf16.h"
#include "device/device.h"

namespace deltafin::plain {

inline constexpr int kLanes = 16;

// Adds up 16 partial sums as a tree; a[] is used up.
inline float Sum16(float* a) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] = a[i] + a[i + width];
  }
  return a[0];
}

// sum over k of w(k) * x(k) in 16 lanes. The padding to whole lanes counts: fma(0, 0, -0) is +0.
template <class W, class X>
float DotOf(int64_t count, const W& w, const X& x) {
  float a[kLanes] = {};
  int64_t k = 0;
  for (; k < count; ++k) a[k % kLanes] = std::fma(w(k), x(k), a[k % kLanes]);
  for (; k % kLanes != 0; ++k) a[k % kLanes] = std::fma(0.0f, 0.0f, a[k % kLanes]);
  return Sum16(a);
}

inline float Dot(int64_t count, const float* w, const float* x) {
  return DotOf(
      count, [w](int64_t k) { return w[k]; }, [x](int64_t k) { return x[k]; });
}

// 2^exponent for a normal result.
inline float Pow2(int32_t exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

inline float Exp(float x) {
  x = -104.0f > x ? -104.0f : x;
  x = 89.0f < x ? 89.0f : x;
  constexpr float kRound = 0x1.8p+23f;  // adding it leaves no bits after the point
  const float t = std::fma(x, 0x1.715476p+0f, kRound);
  const float n = t - kRound;
  float r = std::fma(n, -0x1.62e4p-1f, x);
  r = std::fma(n, -0x1.7f7d1cp-20f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  const float y = std::fma(p, r * r, r) + 1.0f;
  // n as an integer, from the bits of t. 2^n in two factors: n = 128 and n < -126 have no float.
  const int32_t whole = std::bit_cast<int32_t>(t) - std::bit_cast<int32_t>(kRound);
  const int32_t half = whole >> 1;
  return (y * Pow2(half)) * Pow2(whole - half);
}

inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }
inline float Silu(float x) { return x / (1.0f + Exp(-x)); }

inline float Tanh(float x) {
  const float a = std::fabs(x);
  if (a < 0.625f) {
    const float z = x * x;
    float p = -5.70498872745e-3f;
    p = std::fma(p, z, 2.06390887954e-2f);
    p = std::fma(p, z, -5.37397155531e-2f);
    p = std::fma(p, z, 1.33314422036e-1f);
    p = std::fma(p, z, -3.33332819422e-1f);
    return std::fma(p * z, x, x);
  }
  return std::copysign(1.0f - 2.0f / (Exp(2.0f * a) + 1.0f), x);
}

// Spec 3.4.
inline float Situ(float gate, float up, const SituParams& params) {
  const float linear =
      params.linear_beta == 0.0f ? up : params.linear_beta * Tanh(up / params.linear_beta);
  return ((params.beta * Tanh(gate / params.beta)) * Sigmoid(gate)) * linear;
}

// Weights and caches need no alignment.
template <class T>
T Load(const std::byte* from, int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Element (row, col) of an f32, bf16 or int8 matrix as fp32; the row scale of int8 is not applied.
inline float Element(const Matrix& w, int64_t row, int64_t col) {
  const std::byte* const begin = w.data + row * w.row_bytes();
  if (w.format == WeightFormat::kF32) return Load<float>(begin, col);
  if (w.format == WeightFormat::kBf16) return Bf16ToFloat(Load<uint16_t>(begin, col));
  return static_cast<float>(Load<int8_t>(begin, col));
}

inline float RowScale(const Matrix& w, int64_t row) {
  return w.format == WeightFormat::kInt8 ? Load<float>(w.scales, row) : 1.0f;
}

// One element of y = W x.
float DotRow(const Matrix& w, int64_t row, const float* x);

}  // namespace deltafin::plain
