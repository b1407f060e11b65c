// MatMul at one or few positions: the weights go from memory to registers once, some rows of 16
// lanes at a time, fewer for more positions. Several positions take a block of columns after
// the other, so that their inputs stay in the L1 cache while 16 rows pass.
#pragma once

#include "device/cpu/pack_impl.h"

namespace deltafin {

inline constexpr int64_t kStreamRows = 16;  // rows whose lanes are summed up together
// Rows are too short for the processor's own prefetching to get up to speed: each asks for the one
// that comes this many rows later. Past the end of the weight that is a hint without effect.
inline constexpr int64_t kAheadRows = 8;
// Inputs of several positions that stay in the L1 cache while kStreamRows rows pass.
inline constexpr int64_t kStreamFloats = 4096;

// Rows of one weight as a kernel sees them.
struct WeightRows {
  const uint8_t* data;
  int64_t row_bytes;
  const uint8_t* scales;
  int64_t scale_bytes;
};

// The part of the columns that a sweep takes: `count` from where rows and inputs point to. The
// planes of the inputs are `plane_stride` apart; the weights `ahead` bytes further on are asked
// for.
struct StreamColumns {
  int64_t count;
  int64_t plane_stride;
  int64_t ahead;
};

// How far ahead of byte `at` of R rows that are read side by side, `bytes` each, to ask: `near`
// bytes, at the end of the rows for the beginning of the next R.
template <int R>
DF_LANE_FN int64_t NearAhead(int64_t near, int64_t at, int64_t bytes) {
  return at + near < bytes ? near : near + (R - 1) * bytes;
}

// The lanes of a sweep over some columns start from 0 or from those of the columns before.
template <class A, int R, int P, bool kStart>
DF_LANE_FN void LoadStreamLanes(typename A::F (&sum)[R][P][kPlanes<A>], const float* acc) {
  DF_UNROLL for (int r = 0; r < R; ++r) {
    DF_UNROLL for (int p = 0; p < P; ++p) {
      DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
        sum[r][p][i] =
            kStart ? A::Zero() : A::Load(acc + (p * kStreamRows + r) * kLanes + i * A::kWidth);
      }
    }
  }
}
template <class A, int R, int P>
DF_LANE_FN void StoreStreamLanes(float* acc, const typename A::F (&sum)[R][P][kPlanes<A>]) {
  DF_UNROLL for (int r = 0; r < R; ++r) {
    DF_UNROLL for (int p = 0; p < P; ++p) {
      DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
        A::Store(acc + (p * kStreamRows + r) * kLanes + i * A::kWidth, sum[r][p][i]);
      }
    }
  }
}

// acc[r * 16] = the lanes of rows [row, row + R) for P positions, those of position p at
// p * kStreamRows * 16.
template <class A, class W, int R, int P, bool kStart>
inline void StreamDense(float* acc, const WeightRows& w, const int64_t* rows, const float* const* x,
                        const StreamColumns& part) {
  using F = typename A::F;
  const int64_t cols = part.count;
  const int64_t plane_stride = part.plane_stride;
  const uint8_t* row[R];
  F sum[R][P][kPlanes<A>];
  DF_UNROLL for (int r = 0; r < R; ++r) row[r] = w.data + rows[r] * w.row_bytes;
  LoadStreamLanes<A, R, P, kStart>(sum, acc);
  int64_t k = 0;
  int64_t at = 0;  // in a plane of x
  for (; k + kLanes <= cols; k += kLanes, at += A::kWidth) {
    if (k * W::kBytes % 64 == 0) {
      const int64_t ahead = A::kNearBytes != 0 && P == 1
                                ? NearAhead<R>(A::kNearBytes, k * W::kBytes, w.row_bytes)
                                : part.ahead;
      DF_UNROLL for (int r = 0; r < R; ++r) {
        __builtin_prefetch(row[r] + ahead + k * W::kBytes, 0, 3);
      }
    }
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      DF_UNROLL for (int r = 0; r < R; ++r) {
        const F v = W::Load(row[r], k + i * A::kWidth);
        DF_UNROLL for (int p = 0; p < P; ++p) {
          sum[r][p][i] = A::Fma(v, A::Load(x[p] + i * plane_stride + at), sum[r][p][i]);
        }
      }
    }
  }
  if (k < cols) {
    DF_UNROLL for (int r = 0; r < R; ++r) {
      const PaddedTail<W> tail(row[r], k, cols);
      DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
        const F v = W::Load(tail.bytes, i * A::kWidth);
        DF_UNROLL for (int p = 0; p < P; ++p) {
          sum[r][p][i] = A::Fma(v, A::Load(x[p] + i * plane_stride + at), sum[r][p][i]);
        }
      }
    }
  }
  StoreStreamLanes<A, R, P>(acc, sum);
}

// One plane of a group of 128 MXFP4 weights of R rows times P positions: sum = fma(partial sum,
// scale, sum).
template <class A, int R, int P>
DF_LANE_FN void MxGroupStep(typename A::F (&sum)[R][P][kPlanes<A>], int plane,
                            const uint8_t* const (&codes_at)[R], const typename A::F (&scale)[R],
                            const float* const* x, int64_t x_at) {
  using F = typename A::F;
  typename A::Codes codes[R];
  F part[R][P];
  DF_UNROLL for (int r = 0; r < R; ++r) codes[r] = A::LoadCodes(codes_at[r]);
  const auto step = [&]<int j>() __attribute__((always_inline)) {
    DF_UNROLL for (int r = 0; r < R; ++r) {
      const F weight = A::template Decode<j>(codes[r]);
      DF_UNROLL for (int p = 0; p < P; ++p) {
        const F value = A::Load(x[p] + x_at + j * A::kWidth);
        part[r][p] = j == 0 ? A::Mul(weight, value) : A::Fma(weight, value, part[r][p]);
      }
    }
  };
  step.template operator()<0>();
  step.template operator()<1>();
  step.template operator()<2>();
  step.template operator()<3>();
  step.template operator()<4>();
  step.template operator()<5>();
  step.template operator()<6>();
  step.template operator()<7>();
  DF_UNROLL for (int r = 0; r < R; ++r) {
    DF_UNROLL for (int p = 0; p < P; ++p) {
      sum[r][p][plane] = A::Fma(part[r][p], scale[r], sum[r][p][plane]);
    }
  }
}

inline constexpr int64_t kMxGroupBytes = kMxGroup / 2;
inline constexpr int64_t kMxGroupScales = kMxGroup / kMxBlock;

// The last cols % 128 weights of a row, padded with code 0 and scale byte 0.
struct PaddedMxTail {
  uint8_t codes[kMxGroupBytes];
  uint8_t scales[kMxGroupScales];
  DF_LANE_FN void Fill(PaddedMxTail* tail, const uint8_t* codes_at, const uint8_t* scales_at,
                       int64_t cols) {
    __builtin_memset(tail, 0, sizeof(*tail));
    __builtin_memcpy(tail->codes, codes_at, static_cast<size_t>(cols / 2));
    __builtin_memcpy(tail->scales, scales_at, static_cast<size_t>(cols / kMxBlock));
  }
};

template <class A, int R, int P, bool kStart>
inline void StreamMxfp4(float* acc, const WeightRows& w, const int64_t* rows, const float* const* x,
                        const StreamColumns& part) {
  using F = typename A::F;
  const int64_t cols = part.count;
  const int64_t plane_stride = part.plane_stride;
  const uint8_t* codes[R];
  const uint8_t* scales[R];
  F sum[R][P][kPlanes<A>];
  DF_UNROLL for (int r = 0; r < R; ++r) {
    codes[r] = w.data + rows[r] * w.row_bytes;
    scales[r] = w.scales + rows[r] * w.scale_bytes;
  }
  LoadStreamLanes<A, R, P, kStart>(sum, acc);
  const int64_t groups = cols / kMxGroup;
  int64_t at = 0;  // in a plane of x
  int64_t g = 0;
  const auto next_group = [&](const auto& scale_of) __attribute__((always_inline)) {
    const uint8_t* codes_at[R];
    DF_UNROLL for (int r = 0; r < R; ++r) {
      __builtin_prefetch(codes[r] + part.ahead + g * kMxGroupBytes, 0, 3);
    }
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      F scale[R];
      DF_UNROLL for (int r = 0; r < R; ++r) {
        codes_at[r] = codes[r] + g * kMxGroupBytes + i * A::kWidth * 4;
        scale[r] = scale_of(r, i);
      }
      MxGroupStep<A, R, P>(sum, i, codes_at, scale, x, i * plane_stride + at);
    }
    ++g;
    at += 8 * A::kWidth;
  };
  if constexpr (A::kGroupsOfScales == 4) {
    while (g + 4 <= groups) {
      // Four rows have a cache line of scales for each four groups.
      __builtin_prefetch(scales[0] + R * w.scale_bytes + g / 4 * 64, 0, 3);
      F four[R];
      DF_UNROLL for (int r = 0; r < R; ++r) four[r] = A::LoadScales4(scales[r] + g * 4);
      next_group([&](int r, int /*plane*/) { return A::template ScalesOfGroup<0>(four[r]); });
      next_group([&](int r, int /*plane*/) { return A::template ScalesOfGroup<1>(four[r]); });
      next_group([&](int r, int /*plane*/) { return A::template ScalesOfGroup<2>(four[r]); });
      next_group([&](int r, int /*plane*/) { return A::template ScalesOfGroup<3>(four[r]); });
    }
  }
  while (g < groups) {
    next_group([&](int r, int i) { return A::Scales(scales[r] + g * kMxGroupScales, i); });
  }
  if (groups * kMxGroup < cols) {
    PaddedMxTail tail[R];
    const uint8_t* codes_at[R];
    F scale[R];
    for (int r = 0; r < R; ++r) {
      PaddedMxTail::Fill(&tail[r], codes[r] + groups * kMxGroupBytes,
                         scales[r] + groups * kMxGroupScales, cols - groups * kMxGroup);
    }
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      DF_UNROLL for (int r = 0; r < R; ++r) {
        codes_at[r] = tail[r].codes + i * A::kWidth * 4;
        scale[r] = A::Scales(tail[r].scales, i);
      }
      MxGroupStep<A, R, P>(sum, i, codes_at, scale, x, i * plane_stride + at);
    }
  }
  StoreStreamLanes<A, R, P>(acc, sum);
}

template <class A, class W>
struct DenseStream {
  // Eight rows or four at once, if there are registers for them: they share the inputs, and more
  // reads are under way.
  template <int P>
  static constexpr int kRows = A::kAccumulators / P >= 8   ? 8
                               : A::kAccumulators / P >= 4 ? 4
                                                           : A::kAccumulators / P;
  static constexpr int kTogether = kRows<1>;
  static constexpr bool kRowScale = W::kRowScale;
  static constexpr int64_t kUnit = kLanes;  // columns are padded to a multiple of this
  static constexpr int64_t Bytes(int64_t columns) { return columns * W::kBytes; }
  // The weights from column k on.
  static WeightRows From(const WeightRows& w, int64_t k) {
    return {w.data + k * W::kBytes, w.row_bytes, w.scales, w.scale_bytes};
  }
  template <int R, int P, bool kStart>
  static void Run(float* acc, const WeightRows& w, const int64_t* rows, const float* const* x,
                  const StreamColumns& part) {
    StreamDense<A, W, R, P, kStart>(acc, w, rows, x, part);
  }
};

template <class A>
struct Mxfp4Stream {
  // Decoding takes registers, and the partial sums as many as the lanes.
  template <int P>
  static constexpr int kRows = A::kAccumulators < 16 ? 1
                               : P == 1              ? 4
                                                     : 2;
  static constexpr int kTogether = 4;
  static constexpr bool kRowScale = false;
  static constexpr int64_t kUnit = kMxGroup;
  static constexpr int64_t Bytes(int64_t columns) { return columns / 2; }
  static WeightRows From(const WeightRows& w, int64_t k) {
    return {w.data + k / 2, w.row_bytes, w.scales + k / kMxBlock, w.scale_bytes};
  }
  template <int R, int P, bool kStart>
  static void Run(float* acc, const WeightRows& w, const int64_t* rows, const float* const* x,
                  const StreamColumns& part) {
    StreamMxfp4<A, R, P, kStart>(acc, w, rows, x, part);
  }
};

// Stream::kTogether rows for P positions.
template <class Stream, int P, bool kStart>
inline void StreamRows(float* acc, const WeightRows& w, const int64_t* rows, const float* const* x,
                       const StreamColumns& part) {
  constexpr int R = Stream::template kRows<P>;
  for (int r = 0; r < Stream::kTogether; r += R) {
    Stream::template Run<R, P, kStart>(acc + r * kLanes, w, rows + r, x, part);
  }
}

// y[0 .. count) = the sums of `count` <= 16 rows of lanes, times the row scales if there are any.
template <class A>
inline void StoreSums(float* y, const float* acc, int64_t count, const uint8_t* row_scales) {
  using F = typename A::F;
  float sums[kLanes];
  A::Sum16Block(sums, acc);
  if (row_scales != nullptr) {
    float scales[kLanes] = {};
    __builtin_memcpy(scales, row_scales, static_cast<size_t>(count) * sizeof(float));
    for (int64_t i = 0; i < kLanes; i += A::kWidth) {
      const F scaled = A::Mul(A::Load(sums + i), A::Load(scales + i));
      A::Store(sums + i, scaled);
    }
  }
  __builtin_memcpy(y, sums, static_cast<size_t>(count) * sizeof(float));
}

template <class A>
DF_LANE_FN const float* RowAt(const RowsOf<const float>& rows, int64_t p) {
  return rows.base + (rows.index != nullptr ? rows.index[p] : p) * rows.stride;
}
template <class A>
DF_LANE_FN float* RowAt(const RowsOf<float>& rows, int64_t p) {
  return rows.base + (rows.index != nullptr ? rows.index[p] : p) * rows.stride;
}

// Rows [row, row + count), at most kStreamRows, of all positions; kStart: the first columns.
template <class Stream, bool kStart>
inline void StreamSweep(float* acc, const WeightRows& w, int64_t row, int64_t count,
                        const float* const* x, int64_t n, int64_t next_columns,
                        StreamColumns part) {
  constexpr int64_t kSome = Stream::kTogether;
  for (int64_t first = 0; first < count; first += kSome) {
    // At the end of the weight the last row is computed more than once.
    int64_t rows[kSome];
    for (int64_t r = 0; r < kSome; ++r) rows[r] = row + (first + r < count ? first + r : count - 1);
    part.ahead = kAheadRows * w.row_bytes;
    // After the last rows come the first ones of the next columns.
    if (first >= kStreamRows - kAheadRows) part.ahead += next_columns;
    float* lanes = acc + first * kLanes;
    int64_t p = 0;
    for (; p + 4 <= n; p += 4, lanes += 4 * kStreamRows * kLanes) {
      StreamRows<Stream, 4, kStart>(lanes, w, rows, x + p, part);
    }
    if (n - p == 3) StreamRows<Stream, 3, kStart>(lanes, w, rows, x + p, part);
    if (n - p == 2) StreamRows<Stream, 2, kStart>(lanes, w, rows, x + p, part);
    if (n - p == 1) StreamRows<Stream, 1, kStart>(lanes, w, rows, x + p, part);
  }
}

template <class A, class Stream>
inline void StreamMatMul(const MatMulJob& job, const WeightRows& w) {
  const float* x[A::kStreamPositions];
  float* y[A::kStreamPositions];
  for (int64_t p = 0; p < job.n; ++p) {
    x[p] = RowAt<A>(job.x, p);
    y[p] = RowAt<A>(job.y, p);
  }
  alignas(64) float acc[A::kStreamPositions * kStreamRows * kLanes];
  const int64_t plane_stride = RoundUpTo(job.cols, Stream::kUnit) / kPlanes<A>;
  const int64_t some = kStreamFloats / job.n / kMxGroup * kMxGroup;
  const int64_t block = job.n == 1 || job.cols < some ? job.cols : some;
  for (int64_t row = 0; row < job.rows; row += kStreamRows) {
    const int64_t count = job.rows - row < kStreamRows ? job.rows - row : kStreamRows;
    const int64_t back = Stream::Bytes(block) - kStreamRows * w.row_bytes;
    StreamSweep<Stream, true>(acc, w, row, count, x, job.n, block < job.cols ? back : 0,
                              {block, plane_stride, 0});
    for (int64_t k = block; k < job.cols; k += block) {
      const float* x_at[A::kStreamPositions];
      for (int64_t p = 0; p < job.n; ++p) x_at[p] = x[p] + k / kPlanes<A>;
      const bool last = job.cols - k <= block;
      StreamSweep<Stream, false>(acc, Stream::From(w, k), row, count, x_at, job.n, last ? 0 : back,
                                 {last ? job.cols - k : block, plane_stride, 0});
    }
    for (int64_t p = 0; p < job.n; ++p) {
      StoreSums<A>(y[p] + row, acc + p * kStreamRows * kLanes, count,
                   Stream::kRowScale ? w.scales + row * 4 : nullptr);
    }
  }
}

}  // namespace deltafin
