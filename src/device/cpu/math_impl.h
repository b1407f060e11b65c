// The elementary functions of docs/numerics.md and loops over arrays, for one register type.
#pragma once

#include <stdint.h>

#include "device/cpu/kernels.h"

#define DF_UNROLL _Pragma("GCC unroll 16")

namespace deltafin {

template <class A>
inline constexpr int kPlanes = static_cast<int>(kLanes) / A::kWidth;

// A whole register of an array, and the last few elements of one.
template <class A>
struct WholeVector {
  int64_t at;
  typename A::F Load(const float* p) const { return A::Load(p + at); }
  void Store(float* p, typename A::F v) const { A::Store(p + at, v); }
};
template <class A>
struct PartVector {
  int64_t at;
  int64_t count;
  typename A::F Load(const float* p) const { return A::LoadPartial(p + at, count); }
  void Store(float* p, typename A::F v) const { A::StorePartial(p + at, v, count); }
};

// Calls body(vector) for registers that cover [begin, end).
template <class A, class Body>
inline __attribute__((always_inline)) void ForVectors(int64_t begin, int64_t end,
                                                      const Body& body) {
  int64_t i = begin;
  for (; i + A::kWidth <= end; i += A::kWidth) body(WholeVector<A>{i});
  if (i < end) body(PartVector<A>{i, end - i});
}

template <class A, class F = typename A::F>
inline __attribute__((always_inline)) F Exp(F x) {
  x = A::Max(A::Set1(-104.0f), x);
  x = A::Min(A::Set1(89.0f), x);
  const F magic = A::Set1(0x1.8p+23f);
  const F n = A::Sub(A::Fma(x, A::Set1(0x1.715476p+0f), magic), magic);
  F r = A::Fma(n, A::Set1(-0x1.62e4p-1f), x);
  r = A::Fma(n, A::Set1(-0x1.7f7d1cp-20f), r);
  F p = A::Set1(1.9875691500e-4f);
  p = A::Fma(p, r, A::Set1(1.3981999507e-3f));
  p = A::Fma(p, r, A::Set1(8.3334519073e-3f));
  p = A::Fma(p, r, A::Set1(4.1665795894e-2f));
  p = A::Fma(p, r, A::Set1(1.6666665459e-1f));
  p = A::Fma(p, r, A::Set1(5.0000001201e-1f));
  return A::TimesPow2(A::Add(A::Fma(p, A::Mul(r, r), r), A::Set1(1.0f)), n);
}

template <class A, class F = typename A::F>
inline __attribute__((always_inline)) F Sigmoid(F x) {
  return A::Div(A::Set1(1.0f), A::Add(A::Set1(1.0f), Exp<A>(A::Negate(x))));
}

template <class A, class F = typename A::F>
inline __attribute__((always_inline)) F Silu(F x) {
  return A::Div(x, A::Add(A::Set1(1.0f), Exp<A>(A::Negate(x))));
}

template <class A, class F = typename A::F>
inline __attribute__((always_inline)) F Tanh(F x) {
  const F a = A::Abs(x);
  const F z = A::Mul(x, x);
  F p = A::Set1(-5.70498872745e-3f);
  p = A::Fma(p, z, A::Set1(2.06390887954e-2f));
  p = A::Fma(p, z, A::Set1(-5.37397155531e-2f));
  p = A::Fma(p, z, A::Set1(1.33314422036e-1f));
  p = A::Fma(p, z, A::Set1(-3.33332819422e-1f));
  const F small = A::Fma(A::Mul(p, z), x, x);
  const F e = A::Add(Exp<A>(A::Mul(A::Set1(2.0f), a)), A::Set1(1.0f));
  const F large = A::WithSignOf(A::Sub(A::Set1(1.0f), A::Div(A::Set1(2.0f), e)), x);
  return A::SelectLess(a, A::Set1(0.625f), small, large);
}

// The sixteen lanes of element k16 * 16 of a row that ends at `cols`: zero past the end.
template <class A>
inline __attribute__((always_inline)) typename A::F LoadTail(const float* row, int64_t at,
                                                             int64_t cols) {
  if (at >= cols) return A::Zero();
  return at + A::kWidth <= cols ? A::Load(row + at) : A::LoadPartial(row + at, cols - at);
}

// Dot of docs/numerics.md.
template <class A>
inline float Dot(const float* a, const float* b, int64_t cols) {
  typename A::F acc[kPlanes<A>];
  DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) acc[i] = A::Zero();
  int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      const int64_t at = k + i * A::kWidth;
      acc[i] = A::Fma(A::Load(a + at), A::Load(b + at), acc[i]);
    }
  }
  if (k < cols) {
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      const int64_t at = k + i * A::kWidth;
      acc[i] = A::Fma(LoadTail<A>(a, at, cols), LoadTail<A>(b, at, cols), acc[i]);
    }
  }
  return A::Sum16(acc);
}

}  // namespace deltafin
