// MatMul at one or few positions: the weights go from memory to registers once, some rows of 16
// lanes at a time, fewer for more positions. Several positions take a block of columns after
// the other, so that their inputs stay in the L1 cache while 16 rows pass.
#pragma once

#include "device/cpu/pack_impl.h"

namespace deltafin {

inline constexpr int64_t kStreamRows = 16;  // rows whose lanes are summed up together
// Inputs of several positions that stay in the L1 cache while kStreamRows rows pass.
inline constexpr int64_t kStreamFloats = 4096;
inline constexpr int64_t kStreamRowBytes = 8192;  // of weights beside them

// Rows of one weight as a kernel sees them.
struct WeightRows {
  const uint8_t* data;
  int64_t row_bytes;
  const uint8_t* scales;
  int64_t scale_bytes;
};

// The part of the columns that a sweep takes: `count` from where rows and inputs point to. The
// planes of the inputs are `plane_stride` apart. From a row to the first one of the next columns it
// is `next` bytes more than to the row that is Stream::kAheadRows later; 0 if there are none.
struct StreamColumns {
  int64_t count;
  int64_t plane_stride;
  int64_t next;
};

// R rows that are read side by side ask for the cache lines of later weights: each row for what is
// `ahead` bytes later, or, at one position if the kernels of A so do, all for the next ones in the
// order of memory. First, then line r of those that are asked for at byte `at` of the rows.
template <class A, int P>
inline constexpr bool kAsksInOrder = P == 1 && A::kAsksInOrder;
template <class A, int R, int P>
DF_LANE_FN const uint8_t* FirstAhead(const WeightRows& w, int64_t ahead) {
  if constexpr (kAsksInOrder<A, P>) {
    return w.data + (R == 1 ? A::kAheadOfRow : R * w.row_bytes + A::kAheadOfRows);
  } else {
    return w.data + ahead;
  }
}
template <class A, int R, int P>
DF_LANE_FN int64_t LineAhead(int64_t at, int r, int64_t row_bytes) {
  return kAsksInOrder<A, P> ? at * R + r * 64 : at + r * row_bytes;
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

// acc[r * 16] = the lanes of the first R rows of w for P positions, those of position p at
// p * kStreamRows * 16. The weights `ahead` bytes further on are asked for.
template <class A, class W, int R, int P, bool kStart>
DF_LANE_FN void StreamDense(float* acc, const WeightRows& w, const float* const* x,
                            const StreamColumns& part, int64_t ahead) {
  using F = typename A::F;
  const uint8_t* const rows = w.data;
  const int64_t row_bytes = w.row_bytes;
  const int64_t cols = part.count;
  F sum[R][P][kPlanes<A>];
  LoadStreamLanes<A, R, P, kStart>(sum, acc);
  int64_t k = 0;
  int64_t at = 0;  // in a plane of x
  // In the order of memory by cache lines; else smaller steps leave time between the questions.
  constexpr int64_t kStep = kAsksInOrder<A, P> ? 64 / W::kBytes : kLanes;
  const uint8_t* const later = FirstAhead<A, R, P>(w, ahead);
  for (; k + kStep <= cols; k += kStep, at += kStep / kPlanes<A>) {
    if (k * W::kBytes % 64 == 0) {
      DF_UNROLL for (int r = 0; r < R; ++r) {
        __builtin_prefetch(later + LineAhead<A, R, P>(k * W::kBytes, r, row_bytes), 0, 3);
      }
    }
    DF_UNROLL for (int c = 0; c < kStep / kLanes; ++c) {
      DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
        DF_UNROLL for (int r = 0; r < R; ++r) {
          const F v = W::Load(rows + r * row_bytes, k + c * kLanes + i * A::kWidth);
          DF_UNROLL for (int p = 0; p < P; ++p) {
            const F value = A::Load(x[p] + i * part.plane_stride + at + c * A::kWidth);
            sum[r][p][i] = A::Fma(v, value, sum[r][p][i]);
          }
        }
      }
    }
  }
  for (; k < cols; k += kLanes, at += A::kWidth) {
    const int64_t end = cols - k < kLanes ? cols : k + kLanes;
    DF_UNROLL for (int r = 0; r < R; ++r) {
      const PaddedTail<W> tail(rows + r * row_bytes, k, end);
      DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
        const F v = W::Load(tail.bytes, i * A::kWidth);
        DF_UNROLL for (int p = 0; p < P; ++p) {
          sum[r][p][i] = A::Fma(v, A::Load(x[p] + i * part.plane_stride + at), sum[r][p][i]);
        }
      }
    }
  }
  StoreStreamLanes<A, R, P>(acc, sum);
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
    constexpr int64_t kBytes = kMxBlock / 2;
    for (int64_t b = 0; b < cols / kMxBlock; ++b) {
      __builtin_memcpy(tail->codes + b * kBytes, codes_at + b * kBytes, kBytes);
      tail->scales[b] = scales_at[b];
    }
  }
};

// Group g of 128 MXFP4 weights of R rows times P positions: sum = fma(partial sum, scale, sum).
// codes_of(r, i) and scale_of(r, i) are those of plane i of row r.
template <class A, int R, int P>
DF_LANE_FN void MxGroupStep(typename A::F (&sum)[R][P][kPlanes<A>], int64_t g,
                            const float* const* x, int64_t plane_stride, const auto& codes_of,
                            const auto& scale_of) {
  using F = typename A::F;
  DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
    typename A::Codes codes[R];
    DF_UNROLL for (int r = 0; r < R; ++r) codes[r] = codes_of(r, i);
    F part[R][P];
    const int64_t x_at = i * plane_stride + g * 8 * A::kWidth;
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
      const F scale = scale_of(r, i);
      DF_UNROLL for (int p = 0; p < P; ++p) sum[r][p][i] = A::Fma(part[r][p], scale, sum[r][p][i]);
    }
  }
}

// As StreamDense, of MXFP4.
template <class A, int R, int P, bool kStart>
DF_LANE_FN void StreamMxfp4(float* acc, const WeightRows& w, const float* const* x,
                            const StreamColumns& part, int64_t ahead) {
  const int64_t groups = part.count / kMxGroup;
  typename A::F sum[R][P][kPlanes<A>];
  LoadStreamLanes<A, R, P, kStart>(sum, acc);
  const uint8_t* const later = FirstAhead<A, R, P>(w, ahead);
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* const group = w.data + g * kMxGroupBytes;
    const uint8_t* const group_scales = w.scales + g * kMxGroupScales;
    DF_UNROLL for (int r = 0; r < R; ++r) {
      A::Ask(later + LineAhead<A, R, P>(g * kMxGroupBytes, r, w.row_bytes));
    }
    MxGroupStep<A, R, P>(
        sum, g, x, part.plane_stride,
        [&](int r, int i) { return A::LoadCodes(group + r * w.row_bytes + i * A::kWidth * 4); },
        [&](int r, int i) { return A::Scales(group_scales + r * w.scale_bytes, i); });
  }
  if (groups * kMxGroup < part.count) {
    PaddedMxTail tail[R];
    for (int r = 0; r < R; ++r) {
      PaddedMxTail::Fill(&tail[r], w.data + r * w.row_bytes + groups * kMxGroupBytes,
                         w.scales + r * w.scale_bytes + groups * kMxGroupScales,
                         part.count - groups * kMxGroup);
    }
    MxGroupStep<A, R, P>(
        sum, groups, x, part.plane_stride,
        [&](int r, int i) { return A::LoadCodes(tail[r].codes + i * A::kWidth * 4); },
        [&](int r, int i) { return A::Scales(tail[r].scales, i); });
  }
  StoreStreamLanes<A, R, P>(acc, sum);
}

// Of columns that are a multiple of four groups, whose scales are read together.
template <class A, int R, int P, bool kStart>
DF_LANE_FN void StreamMxfp4Fours(float* acc, const WeightRows& w, const float* const* x,
                                 const StreamColumns& part, int64_t ahead) {
  using F = typename A::F;
  const uint8_t* const rows = w.data;
  const uint8_t* const scales = w.scales;
  const int64_t row_bytes = w.row_bytes;
  const int64_t scale_bytes = w.scale_bytes;
  F sum[R][P][kPlanes<A>];
  LoadStreamLanes<A, R, P, kStart>(sum, acc);
  const uint8_t* const later = FirstAhead<A, R, P>(w, ahead);
  const int64_t groups = part.count / kMxGroup;
  for (int64_t g = 0; g < groups; g += 4) {
    // Those of the rows four later, so many bytes for each four groups.
    __builtin_prefetch(scales + 4 * scale_bytes + R * g * kMxGroupScales, 0, 3);
    F four[R];
    DF_UNROLL for (int r = 0; r < R; ++r) {
      four[r] = A::LoadScales4(scales + r * scale_bytes + g * kMxGroupScales);
    }
    const auto step = [&]<int j>() __attribute__((always_inline)) {
      DF_UNROLL for (int t = 0; t < R; ++t) {
        if constexpr (kAsksInOrder<A, P>) {
          A::Ask(later + ((g + j) * R + t) * 64);
        } else {  // four lines of a row after each other
          constexpr int kFirst = j * R;
          A::Ask(later + g * kMxGroupBytes + (kFirst + t) / 4 * row_bytes + (kFirst + t) % 4 * 64);
        }
      }
      const uint8_t* const group = rows + (g + j) * kMxGroupBytes;
      MxGroupStep<A, R, P>(
          sum, g + j, x, part.plane_stride,
          [&](int r, int i) { return A::LoadCodes(group + r * row_bytes + i * A::kWidth * 4); },
          [&](int r, int) { return A::template ScalesOfGroup<j>(four[r]); });
    };
    step.template operator()<0>();
    step.template operator()<1>();
    step.template operator()<2>();
    step.template operator()<3>();
  }
  StoreStreamLanes<A, R, P>(acc, sum);
}

template <class A, class W>
struct DenseStream {
  // Eight rows or four at once, if there are registers for them: they share the inputs, and more
  // reads are under way. In the order of memory as few as do not wait for their multiply-adds.
  template <int P>
  static constexpr int kRows = kAsksInOrder<A, P>          ? (W::kBytes == 1 ? 2 : 1)
                               : A::kAccumulators / P >= 8 ? 8
                               : A::kAccumulators / P >= 4 ? 4
                                                           : A::kAccumulators / P;
  static constexpr int64_t kAheadRows = A::kAheadRows;
  static constexpr bool kRowScale = W::kRowScale;
  static constexpr int64_t kUnit = kLanes;  // columns are padded to a multiple of this
  static constexpr int64_t kWhole = 1;      // columns of which Run<..., true> takes multiples only
  static constexpr int64_t Bytes(int64_t columns) { return columns * W::kBytes; }
  // The weights from column k on.
  static WeightRows From(const WeightRows& w, int64_t k) {
    return {w.data + k * W::kBytes, w.row_bytes, w.scales, w.scale_bytes};
  }
  template <int R, int P, bool kStart, bool kOfWhole>
  DF_LANE_FN void Run(float* acc, const WeightRows& w, const float* const* x,
                      const StreamColumns& part, int64_t ahead) {
    StreamDense<A, W, R, P, kStart>(acc, w, x, part, ahead);
  }
};

template <class A>
struct Mxfp4Stream {
  // Decoding takes registers, and the partial sums as many as the lanes.
  template <int P>
  static constexpr int kRows = A::kAccumulators < 16 ? 1
                               : P == 1              ? 4
                                                     : 2;
  static constexpr int64_t kAheadRows = A::kAheadRows;
  static constexpr bool kRowScale = false;
  static constexpr int64_t kUnit = kMxGroup;
  static constexpr int64_t kWhole = A::kGroupsOfScales == 1 ? 1 : A::kGroupsOfScales * kMxGroup;
  static constexpr int64_t Bytes(int64_t columns) { return columns / 2; }
  static WeightRows From(const WeightRows& w, int64_t k) {
    return {w.data + k / 2, w.row_bytes, w.scales + k / kMxBlock, w.scale_bytes};
  }
  template <int R, int P, bool kStart, bool kOfWhole>
  DF_LANE_FN void Run(float* acc, const WeightRows& w, const float* const* x,
                      const StreamColumns& part, int64_t ahead) {
    if constexpr (kOfWhole && kWhole > 1) {
      StreamMxfp4Fours<A, R, P, kStart>(acc, w, x, part, ahead);
    } else {
      StreamMxfp4<A, R, P, kStart>(acc, w, x, part, ahead);
    }
  }
};

// Rows [first, last) of the sweep that begins with `row`, for P positions.
template <class Stream, int P, bool kStart, bool kOfWhole>
__attribute__((noinline)) void StreamRows(float* acc, const WeightRows& w, int64_t row,
                                          int64_t first, int64_t last, const float* const* x,
                                          const StreamColumns& part) {
  constexpr int R = Stream::template kRows<P>;
  constexpr int64_t kAhead = Stream::kAheadRows;
  // Copies: the stores of lanes might overwrite the originals, as far as the compiler knows.
  const StreamColumns columns = part;
  const float* inputs[P];
  for (int p = 0; p < P; ++p) inputs[p] = x[p];
  const int64_t row_bytes = w.row_bytes;
  const int64_t scale_bytes = w.scale_bytes;
  WeightRows at = {w.data + (row + first) * row_bytes, row_bytes,
                   w.scales + (row + first) * scale_bytes, scale_bytes};
  const auto run = [&]<int kRows>(int64_t r) __attribute__((always_inline)) {
    // After the last rows come the first ones of the next columns. No branch: the compiler would
    // make two loops of it, and those of MXFP4 are a tenth slower than one.
    const int64_t is_last = (kStreamRows - kAhead - 1 - r) >> 63;
    const int64_t ahead = kAhead * row_bytes + (is_last & columns.next);
    Stream::template Run<kRows, P, kStart, kOfWhole>(acc + r * kLanes, at, inputs, columns, ahead);
    at.data += kRows * row_bytes;
    at.scales += kRows * scale_bytes;
  };
  int64_t r = first;
  for (; r + R <= last; r += R) run.template operator()<R>(r);
  if constexpr (R > 1) {
    for (; r < last; ++r) run.template operator()<1>(r);
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
  if (count == kLanes) {
    __builtin_memcpy(y, sums, sizeof(sums));  // no call
  } else {
    __builtin_memcpy(y, sums, static_cast<size_t>(count) * sizeof(float));
  }
}

template <class A>
DF_LANE_FN const float* RowAt(const RowsOf<const float>& rows, int64_t p) {
  return rows.base + (rows.index != nullptr ? rows.index[p] : p) * rows.stride;
}
template <class A>
DF_LANE_FN float* RowAt(const RowsOf<float>& rows, int64_t p) {
  return rows.base + (rows.index != nullptr ? rows.index[p] : p) * rows.stride;
}

// Rows [row, row + count), at most kStreamRows, of all positions; kStart: the first columns. Four
// positions at a time, and as many rows as stay in the L1 cache until the last positions have had
// them.
template <class Stream, bool kStart, bool kOfWhole>
inline void StreamSweepOf(float* acc, const WeightRows& w, int64_t row, int64_t count,
                          const float* const* x, int64_t n, const StreamColumns& part) {
  const bool all = n <= 4 || kStreamRows * Stream::Bytes(part.count) <= kStreamRowBytes;
  constexpr int64_t kAtOnce = Stream::template kRows < 1 >> 4 ? Stream::template kRows<1> : 4;
  const int64_t some = all ? kStreamRows : kAtOnce;
  for (int64_t first = 0; first < count; first += some) {
    const int64_t last = first + some < count ? first + some : count;
    float* lanes = acc;
    int64_t p = 0;
    const auto rows_of = [&]<int P>() {
      StreamRows<Stream, P, kStart, kOfWhole>(lanes, w, row, first, last, x + p, part);
    };
    for (; p + 4 <= n; p += 4, lanes += 4 * kStreamRows * kLanes) rows_of.template operator()<4>();
    if (n - p == 3) rows_of.template operator()<3>();
    if (n - p == 2) rows_of.template operator()<2>();
    if (n - p == 1) rows_of.template operator()<1>();
  }
}

template <class Stream, bool kStart>
inline void StreamSweep(float* acc, const WeightRows& w, int64_t row, int64_t count,
                        const float* const* x, int64_t n, const StreamColumns& part) {
  if constexpr (Stream::kWhole > 1) {
    if (part.count % Stream::kWhole != 0) {
      return StreamSweepOf<Stream, kStart, false>(acc, w, row, count, x, n, part);
    }
  }
  StreamSweepOf<Stream, kStart, true>(acc, w, row, count, x, n, part);
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
  // Whole columns first, a block of them for several positions; what is left is the last block.
  const int64_t unit = kMxGroup > Stream::kWhole ? kMxGroup : Stream::kWhole;
  const int64_t some = kStreamFloats / job.n > unit ? kStreamFloats / job.n / unit * unit : unit;
  const int64_t whole = job.cols - job.cols % Stream::kWhole;
  const int64_t block = whole == 0 ? job.cols : job.n == 1 || whole < some ? whole : some;
  for (int64_t row = 0; row < job.rows; row += kStreamRows) {
    const int64_t count = job.rows - row < kStreamRows ? job.rows - row : kStreamRows;
    const int64_t back = Stream::Bytes(block) - kStreamRows * w.row_bytes;
    StreamSweep<Stream, true>(acc, w, row, count, x, job.n,
                              {block, plane_stride, block < job.cols ? back : 0});
    for (int64_t k = block; k < job.cols; k += block) {
      const float* x_at[A::kStreamPositions];
      for (int64_t p = 0; p < job.n; ++p) x_at[p] = x[p] + k / kPlanes<A>;
      const bool last = job.cols - k <= block;
      StreamSweep<Stream, false>(acc, Stream::From(w, k), row, count, x_at, job.n,
                                 {last ? job.cols - k : block, plane_stride, last ? 0 : back});
    }
    for (int64_t p = 0; p < job.n; ++p) {
      StoreSums<A>(y[p] + row, acc + p * kStreamRows * kLanes, count,
                   Stream::kRowScale ? w.scales + row * 4 : nullptr);
    }
  }
}

}  // namespace deltafin
