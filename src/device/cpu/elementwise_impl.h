// Norms, gates, activations and weighted sums of rows.
#pragma once

#include "device/cpu/math_impl.h"

namespace deltafin {

template <class A>
struct ElementwiseKernels {
  using F = typename A::F;

  static void AddTo(float* dst, const float* src, int64_t count) {
    ForVectors<A>(0, count, [&](auto v) { v.Store(dst, A::Add(v.Load(dst), v.Load(src))); });
  }

  static void Situ(float* out, const float* gate, const float* up, int64_t count, float beta,
                   float linear_beta) {
    const F b = A::Set1(beta);
    const F lb = A::Set1(linear_beta);
    const bool bounded = linear_beta != 0.0f;
    ForVectors<A>(0, count, [&](auto v) {
      const F g = v.Load(gate);
      F u = v.Load(up);
      if (bounded) u = A::Mul(lb, Tanh<A>(A::Div(u, lb)));
      v.Store(out, A::Mul(A::Mul(A::Mul(b, Tanh<A>(A::Div(g, b))), deltafin::Sigmoid<A>(g)), u));
    });
  }

  static void SigmoidOf(float* out, const float* x, int64_t count) {
    ForVectors<A>(0, count, [&](auto v) { v.Store(out, deltafin::Sigmoid<A>(v.Load(x))); });
  }

  static void SigmoidGate(float* y, const float* gate, int64_t count) {
    ForVectors<A>(0, count, [&](auto v) {
      v.Store(y, A::Mul(v.Load(y), deltafin::Sigmoid<A>(v.Load(gate))));
    });
  }

  static float InverseRms(float sum_of_squares, int64_t dim, float eps) {
    return 1.0f / __builtin_sqrtf(sum_of_squares / static_cast<float>(dim) + eps);
  }

  static void RmsNorm(float* y, const float* x, const float* w, int64_t dim, float eps) {
    const F r = A::Set1(InverseRms(Dot<A>(x, x, dim), dim, eps));
    ForVectors<A>(0, dim, [&](auto v) { v.Store(y, A::Mul(A::Mul(v.Load(x), r), v.Load(w))); });
  }

  static void GatedRmsNorm(float* y, const float* gate, const float* w, int64_t dim, float eps) {
    const F r = A::Set1(InverseRms(Dot<A>(y, y, dim), dim, eps));
    ForVectors<A>(0, dim, [&](auto v) {
      const F normed = A::Mul(A::Mul(v.Load(y), r), v.Load(w));
      v.Store(y, A::Mul(normed, deltafin::Sigmoid<A>(v.Load(gate))));
    });
  }

  static void L2Normalize(float* x, int64_t dim, float scale) {
    const F r = A::Set1(1.0f / __builtin_sqrtf(Dot<A>(x, x, dim) + 1e-6f));
    const F s = A::Set1(scale);
    ForVectors<A>(0, dim, [&](auto v) { v.Store(x, A::Mul(A::Mul(v.Load(x), r), s)); });
  }

  // Scores of kSources sources at once, so that their chains of additions overlap.
  static constexpr int kSources = kPlanes<A> == 1 ? 4 : (kPlanes<A> == 2 ? 2 : 1);

  static void MixScores(float* scores, const float* const* sources, const float* query, int64_t dim,
                        float eps) {
    F vv[kSources][kPlanes<A>];
    F vq[kSources][kPlanes<A>];
    DF_UNROLL for (int s = 0; s < kSources; ++s) {
      DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) vv[s][i] = vq[s][i] = A::Zero();
    }
    int64_t k = 0;
    for (; k + kLanes <= dim; k += kLanes) {
      DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
        const int64_t at = k + i * A::kWidth;
        const F q = A::Load(query + at);
        DF_UNROLL for (int s = 0; s < kSources; ++s) {
          const F v = A::Load(sources[s] + at);
          vv[s][i] = A::Fma(v, v, vv[s][i]);
          vq[s][i] = A::Fma(v, q, vq[s][i]);
        }
      }
    }
    if (k < dim) {
      DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
        const int64_t at = k + i * A::kWidth;
        const F q = LoadTail<A>(query, at, dim);
        DF_UNROLL for (int s = 0; s < kSources; ++s) {
          const F v = LoadTail<A>(sources[s], at, dim);
          vv[s][i] = A::Fma(v, v, vv[s][i]);
          vq[s][i] = A::Fma(v, q, vq[s][i]);
        }
      }
    }
    DF_UNROLL for (int s = 0; s < kSources; ++s) {
      scores[s] = A::Sum16(vq[s]) * InverseRms(A::Sum16(vv[s]), dim, eps);
    }
  }

  static void ResidualMix(float* out, const float* const* sources, int64_t num_sources,
                          const float* query, int64_t dim, float eps) {
    float p[64 + kSources];
    for (int64_t first = 0; first < num_sources; first += kSources) {
      const float* some[kSources];
      for (int s = 0; s < kSources; ++s) {
        some[s] = sources[first + s < num_sources ? first + s : num_sources - 1];
      }
      MixScores(p + first, some, query, dim, eps);
    }
    float largest = p[0];
    for (int64_t i = 1; i < num_sources; ++i) largest = p[i] > largest ? p[i] : largest;
    for (int64_t i = 0; i < num_sources; ++i) p[i] -= largest;
    ForVectors<A>(0, num_sources, [&](auto v) { v.Store(p, Exp<A>(v.Load(p))); });
    float sum = p[0];
    for (int64_t i = 1; i < num_sources; ++i) sum += p[i];
    for (int64_t i = 0; i < num_sources; ++i) p[i] /= sum;
    ForVectors<A>(0, dim, [&](auto v) {
      F acc = A::Mul(A::Set1(p[0]), v.Load(sources[0]));
      for (int64_t i = 1; i < num_sources; ++i) {
        acc = A::Fma(A::Set1(p[i]), v.Load(sources[i]), acc);
      }
      v.Store(out, acc);
    });
  }

  static void Combine(float* out, const float* y, const float* weights, int64_t top_k,
                      int64_t dim) {
    ForVectors<A>(0, dim, [&](auto v) {
      F acc = A::Mul(A::Set1(weights[0]), v.Load(y));
      for (int64_t j = 1; j < top_k; ++j) {
        acc = A::Fma(A::Set1(weights[j]), v.Load(y + j * dim), acc);
      }
      v.Store(out, acc);
    });
  }

  static void ToBf16(uint16_t* dst, const float* src, int64_t count) {
    int64_t i = 0;
    for (; i + A::kWidth <= count; i += A::kWidth) A::StoreBf16(dst + i, A::Load(src + i));
    if (i < count) {
      uint16_t last[A::kWidth];
      A::StoreBf16(last, A::LoadPartial(src + i, count - i));
      __builtin_memcpy(dst + i, last, static_cast<size_t>(count - i) * sizeof(uint16_t));
    }
  }
};

}  // namespace deltafin
