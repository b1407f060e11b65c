// Kimi Delta Attention: short convolution, decay gates and the recurrence.
#pragma once

#include "device/cpu/math_impl.h"

namespace deltafin {

template <class A>
struct KdaKernels {
  using F = typename A::F;

  static void ShortConv(float* y, const float* x, const float* w, float* history, int64_t n,
                        int64_t channels, int64_t begin, int64_t end) {
    ForVectors<A>(begin, end, [&](auto v) {
      F taps[4];
      if (v.at + A::kWidth <= end) {
        A::LoadColumns4(w + 4 * v.at, taps);
      } else {
        float padded[4 * A::kWidth] = {};
        __builtin_memcpy(padded, w + 4 * v.at, static_cast<size_t>(end - v.at) * 4 * sizeof(float));
        A::LoadColumns4(padded, taps);
      }
      F s0 = v.Load(history);
      F s1 = v.Load(history + channels);
      F s2 = v.Load(history + 2 * channels);
      for (int64_t t = 0; t < n; ++t) {
        const F s3 = v.Load(x + t * channels);
        const F sum =
            A::Fma(taps[3], s3, A::Fma(taps[2], s2, A::Fma(taps[1], s1, A::Mul(taps[0], s0))));
        v.Store(y + t * channels, Silu<A>(sum));
        s0 = s1;
        s1 = s2;
        s2 = s3;
      }
      v.Store(history, s0);
      v.Store(history + channels, s1);
      v.Store(history + 2 * channels, s2);
    });
  }

  static void Gate(float* f, const float* dt_bias, float a_log, int64_t dim, float lower_bound) {
    const F rate = Exp<A>(A::Set1(a_log));
    const F bound = A::Set1(lower_bound);
    ForVectors<A>(0, dim, [&](auto v) {
      const F x = A::Mul(rate, A::Add(v.Load(f), v.Load(dt_bias)));
      v.Store(f, Exp<A>(A::Mul(bound, Sigmoid<A>(x))));
    });
  }

  // One step of kVectors registers of columns. The decayed state is computed in both sweeps instead
  // of being stored in between: a store costs more than a multiplication.
  template <int kVectors>
  static void Step(const KdaJob& job, int64_t t, int64_t column) {
    const int64_t dim = job.dim;
    const float* q = job.q + t * job.stride;
    const float* k = job.k + t * job.stride;
    const float* alpha = job.alpha + t * job.stride;
    F u[kVectors];
    DF_UNROLL for (int c = 0; c < kVectors; ++c) u[c] = A::Zero();
    const float* read = job.state + column;
    for (int64_t i = 0; i < dim; ++i, read += dim) {
      const F decay = A::Set1(alpha[i]);
      const F key = A::Set1(k[i]);
      DF_UNROLL for (int c = 0; c < kVectors; ++c) {
        u[c] = A::Fma(key, A::Mul(A::Load(read + c * A::kWidth), decay), u[c]);
      }
    }
    const F beta = A::Set1(job.beta[t * job.beta_stride]);
    const float* v = job.v + t * job.stride + column;
    F d[kVectors];
    F o[kVectors];
    DF_UNROLL for (int c = 0; c < kVectors; ++c) {
      d[c] = A::Mul(beta, A::Sub(A::Load(v + c * A::kWidth), u[c]));
      o[c] = A::Zero();
    }
    float* state = job.state + column;
    for (int64_t i = 0; i < dim; ++i, state += dim) {
      const F decay = A::Set1(alpha[i]);
      const F key = A::Set1(k[i]);
      const F query = A::Set1(q[i]);
      DF_UNROLL for (int c = 0; c < kVectors; ++c) {
        float* at = state + c * A::kWidth;
        const F s = A::Fma(key, d[c], A::Mul(A::Load(at), decay));
        A::Store(at, s);
        o[c] = A::Fma(query, s, o[c]);
      }
    }
    float* out = job.out + t * job.stride + column;
    DF_UNROLL for (int c = 0; c < kVectors; ++c) A::Store(out + c * A::kWidth, o[c]);
  }

  // The last dim % kWidth columns.
  static void StepTail(const KdaJob& job, int64_t t, int64_t column) {
    const int64_t dim = job.dim;
    const int64_t count = dim - column;
    const float* q = job.q + t * job.stride;
    const float* k = job.k + t * job.stride;
    const float* alpha = job.alpha + t * job.stride;
    F u = A::Zero();
    for (int64_t i = 0; i < dim; ++i) {
      const F s = A::LoadPartial(job.state + i * dim + column, count);
      u = A::Fma(A::Set1(k[i]), A::Mul(s, A::Set1(alpha[i])), u);
    }
    const F v = A::LoadPartial(job.v + t * job.stride + column, count);
    const F d = A::Mul(A::Set1(job.beta[t * job.beta_stride]), A::Sub(v, u));
    F o = A::Zero();
    for (int64_t i = 0; i < dim; ++i) {
      float* at = job.state + i * dim + column;
      const F s = A::Fma(A::Set1(k[i]), d, A::Mul(A::LoadPartial(at, count), A::Set1(alpha[i])));
      A::StorePartial(at, s, count);
      o = A::Fma(A::Set1(q[i]), s, o);
    }
    A::StorePartial(job.out + t * job.stride + column, o, count);
  }

  static void Recurrence(const KdaJob& job) {
    constexpr int64_t kWide = A::kStateVectors * A::kWidth;
    int64_t column = 0;
    for (; column + kWide <= job.dim; column += kWide) {
      for (int64_t t = 0; t < job.n; ++t) Step<A::kStateVectors>(job, t, column);
    }
    for (; column + A::kWidth <= job.dim; column += A::kWidth) {
      for (int64_t t = 0; t < job.n; ++t) Step<1>(job, t, column);
    }
    if (column < job.dim) {
      for (int64_t t = 0; t < job.n; ++t) StepTail(job, t, column);
    }
  }
};

}  // namespace deltafin
