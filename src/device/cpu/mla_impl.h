// Multi-head latent attention: absorbing the query, attention over a segment of the cache, merging.
#pragma once

#include "device/cpu/stream_impl.h"
#include "device/cpu/tile_impl.h"

namespace deltafin {

template <class A>
struct MlaKernels {
  using F = typename A::F;

  // ---- absorbed query ----

  template <class W>
  static void WidenRows(float* dst, const AbsorbJob& job) {
    const int64_t padded = RoundUpTo(job.cols, kLanes);
    for (int64_t i = 0; i < job.rows; ++i) {
      WidenRow<A, W>(dst + i * padded, padded / kPlanes<A>,
                     reinterpret_cast<const uint8_t*>(job.data) + i * job.cols * W::kBytes, 0,
                     job.cols);
    }
  }

  static void Absorb(const AbsorbJob& job, float* scratch) {
    const int64_t padded = RoundUpTo(job.cols, kLanes);
    float* weights = scratch;
    float* coef = weights + job.rows * padded;
    if (job.format == WeightFormat::kF32) WidenRows<F32Weights<A>>(weights, job);
    if (job.format == WeightFormat::kBf16) WidenRows<Bf16Weights<A>>(weights, job);
    if (job.format == WeightFormat::kInt8) WidenRows<Int8Weights<A>>(weights, job);
    float* sums = coef + kAbsorbPositions * job.rows;
    for (int64_t p = 0; p < job.n; p += kAbsorbPositions) {
      const int64_t some = job.n - p < kAbsorbPositions ? job.n - p : kAbsorbPositions;
      for (int64_t i = 0; i < some; ++i) {
        const float* q = RowAt<A>(job.q, p + i);
        float* to = coef + i * job.rows;
        for (int64_t r = 0; r < job.rows; ++r) to[r] = q[r];
        if (job.format == WeightFormat::kInt8) {
          const float* scales = reinterpret_cast<const float*>(job.scales);
          ForVectors<A>(0, job.rows,
                        [&](auto v) { v.Store(to, A::Mul(v.Load(to), v.Load(scales))); });
        }
      }
      OuterProduct<A>(OuterTarget{sums, padded, nullptr, nullptr}, coef, job.rows, some, weights,
                      padded, job.rows, padded / A::kWidth);
      for (int64_t i = 0; i < some; ++i) {
        UnpackDense<A>(RowAt<A>(job.out, p + i), sums + i * padded, job.cols);
      }
    }
  }

  // ---- attention ----

  // The state of one head: the sum in planes, then the maximum and the sum of the weights.
  struct State {
    float* o;
    float* max;
    float* sum;
  };
  static State StateOf(float* state, int64_t kv_lora) {
    float* tail = state + RoundUpTo(kv_lora, kLanes);
    return {state, tail, tail + 1};
  }

  // `count` tokens of the cache, from `token` on, widened to packed rows.
  static void LoadBlock(float* dst, const AttentionJob& job, int64_t token, int64_t count) {
    const int64_t padded = RoundUpTo(job.latent_dim, kLanes);
    const int64_t row_bytes = job.latent_dim * (job.bf16_cache ? 2 : 4);
    const uint8_t* rows = static_cast<const uint8_t*>(job.pages[token / job.page_tokens]) +
                          token % job.page_tokens * row_bytes;
    for (int64_t s = 0; s < count; ++s) {
      if (job.bf16_cache) {
        WidenRow<A, Bf16Weights<A>>(dst + s * padded, padded / kPlanes<A>, rows + s * row_bytes, 0,
                                    job.latent_dim);
      } else {
        WidenRow<A, F32Weights<A>>(dst + s * padded, padded / kPlanes<A>, rows + s * row_bytes, 0,
                                   job.latent_dim);
      }
    }
  }

  struct ScoreTile {
    LaneSums acc;
    const float* c;
    int64_t c_stride;
    const float* const* q;
    int64_t at;
    int64_t steps;
    template <int P>
    void Run() const {
      DotTile<A, P>(acc, c, c_stride, q, at, steps);
    }
  };

  // scores[h][s] = Dot(query h, token s) for `heads` <= kTilePositions heads and all 64 tokens of
  // the block; the tokens past `count` are whatever the scratch holds, and are not used.
  static void Scores(float* scores, const float* queries, const AttentionJob& job, int64_t heads,
                     const float* block, int64_t count) {
    constexpr int kTokens = 16;
    const int64_t padded = RoundUpTo(job.latent_dim, kLanes);
    const int64_t plane_floats = padded / kPlanes<A>;
    const float* q[A::kTilePositions];
    for (int64_t h = 0; h < heads; ++h) q[h] = queries + h * job.query_stride;
    alignas(64) float lanes[A::kTilePositions * kTokens * kLanes];
    for (int64_t s = 0; s < count; s += kTokens) {
      for (int plane = 0; plane < kPlanes<A>; ++plane) {
        for (int64_t t = 0; t < kTokens; t += kTileRows) {
          RunTile<A::kTilePositions>(
              ScoreTile{{lanes + t * kLanes + plane * A::kWidth, kTokens * kLanes},
                        block + (s + t) * padded + plane * plane_floats,
                        padded,
                        q,
                        plane * plane_floats,
                        padded / kLanes},
              heads);
        }
      }
      for (int64_t h = 0; h < heads; ++h) {
        A::Sum16Block(scores + h * kBlockTokens + s, lanes + h * kTokens * kLanes);
      }
    }
  }

  struct BlockSoftmax {
    float max;
    float sum;
  };
  // scores -> weights e relative to the block's maximum, in place.
  static BlockSoftmax Softmax(float* e, int64_t count, float scale) {
    const F s = A::Set1(scale);
    F largest = A::Set1(-__builtin_inff());
    ForVectors<A>(0, count, [&](auto v) {
      const F score = A::Mul(v.Load(e), s);
      v.Store(e, score);
      if constexpr (sizeof(v) == sizeof(WholeVector<A>)) largest = A::Max(score, largest);
    });
    float lanes[kLanes];
    A::Store(lanes, largest);
    float max = e[count - 1];
    for (int i = 0; i < A::kWidth; ++i) max = lanes[i] > max ? lanes[i] : max;
    for (int64_t i = count / A::kWidth * A::kWidth; i < count; ++i) max = e[i] > max ? e[i] : max;
    const F m = A::Set1(max);
    ForVectors<A>(0, count, [&](auto v) { v.Store(e, Exp<A>(A::Sub(v.Load(e), m))); });
    F sum[kPlanes<A>];
    for (int i = 0; i < kPlanes<A>; ++i) sum[i] = A::Zero();
    for (int64_t at = 0; at < count; at += kLanes) {
      DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
        sum[i] = A::Add(sum[i], LoadTail<A>(e, at + i * A::kWidth, count));
      }
    }
    return {max, A::Sum16(sum)};
  }

  struct MergeFactors {
    float max;
    float a;
    float b;
  };
  static MergeFactors FactorsOf(float max, float next_max) {
    const float m = max < next_max ? next_max : max;
    float x[kLanes] = {max - m, next_max - m};
    A::Store(x, Exp<A>(A::Load(x)));
    return {m, x[0], x[1]};
  }

  static void AttendSegment(const AttentionJob& job, float* scratch) {
    const int64_t padded = RoundUpTo(job.latent_dim, kLanes);
    const int64_t value_floats = RoundUpTo(job.kv_lora, kLanes);
    const int64_t state_floats = AttentionStateFloats(job.kv_lora);
    float* block = scratch;
    float* e = block + kBlockTokens * padded;
    float* a = e + job.num_heads * kBlockTokens;
    float* b = a + job.num_heads;
    for (int64_t s = 0; s < job.num_tokens; s += kBlockTokens) {
      const int64_t left = job.num_tokens - s;
      const int64_t count = left < kBlockTokens ? left : kBlockTokens;
      LoadBlock(block, job, job.first_token + s, count);
      for (int64_t h = 0; h < job.num_heads; h += A::kTilePositions) {
        const int64_t some =
            job.num_heads - h < A::kTilePositions ? job.num_heads - h : A::kTilePositions;
        Scores(e + h * kBlockTokens, job.queries + h * job.query_stride, job, some, block, count);
      }
      for (int64_t h = 0; h < job.num_heads; ++h) {
        const BlockSoftmax softmax = Softmax(e + h * kBlockTokens, count, job.scale);
        const State state = StateOf(job.states + h * state_floats, job.kv_lora);
        if (s == 0) {
          *state.max = softmax.max;
          *state.sum = softmax.sum;
          continue;
        }
        const MergeFactors factors = FactorsOf(*state.max, softmax.max);
        a[h] = factors.a;
        b[h] = factors.b;
        *state.max = factors.max;
        *state.sum = __builtin_fmaf(*state.sum, factors.a, softmax.sum * factors.b);
      }
      for (int plane = 0; plane < kPlanes<A>; ++plane) {
        OuterProduct<A>(OuterTarget{job.states + plane * (value_floats / kPlanes<A>), state_floats,
                                    s == 0 ? nullptr : a, b},
                        e, kBlockTokens, job.num_heads, block + plane * (padded / kPlanes<A>),
                        padded, count, value_floats / kLanes);
      }
    }
  }

  static void Merge(float* into, const float* next, int64_t kv_lora) {
    const State state = StateOf(into, kv_lora);
    const float* next_tail = next + RoundUpTo(kv_lora, kLanes);
    const MergeFactors factors = FactorsOf(*state.max, next_tail[0]);
    *state.max = factors.max;
    *state.sum = __builtin_fmaf(*state.sum, factors.a, next_tail[1] * factors.b);
    const F a = A::Set1(factors.a);
    const F b = A::Set1(factors.b);
    ForVectors<A>(0, RoundUpTo(kv_lora, kLanes),
                  [&](auto v) { v.Store(into, A::Fma(v.Load(into), a, A::Mul(v.Load(next), b))); });
  }

  static void Finish(float* out, const float* state, int64_t kv_lora) {
    UnpackDense<A>(out, state, kv_lora);
    const F sum = A::Set1(state[RoundUpTo(kv_lora, kLanes) + 1]);
    ForVectors<A>(0, kv_lora, [&](auto v) { v.Store(out, A::Div(v.Load(out), sum)); });
  }
};

}  // namespace deltafin
