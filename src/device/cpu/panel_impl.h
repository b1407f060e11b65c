// MatMul at many positions: a panel of weight rows x columns is widened to fp32 once, stays in the
// L2 cache, and serves all positions with register tiles.
#pragma once

#include "device/cpu/stream_impl.h"
#include "device/cpu/tile_impl.h"

namespace deltafin {

template <class A>
struct Panel {
  float* weights;  // [kPanelRows][kPanelStride], each row in planes
  float* scales;   // [kPanelRows][kPanelCols / 128][16], MXFP4 only
  float* lanes;    // [position][kPanelRows][16]

  explicit Panel(float* scratch)
      : weights(scratch),
        scales(scratch + kPanelRows * kPanelStride),
        lanes(scales + kPanelRows * kPanelScaleStride) {}
  float* Lanes(int64_t position, int64_t row, int plane) const {
    return lanes + position * kPanelLaneStride + row * kLanes + plane * A::kWidth;
  }
};

// The part of a panel that is in work: columns [begin, end), `padded` of them with the padding.
struct PanelColumns {
  int64_t begin;
  int64_t end;
  int64_t padded;
};

template <class A>
inline void DecodeMxRow(float* dst, float* scale_dst, int64_t plane_stride, const uint8_t* codes,
                        const uint8_t* scales, int64_t cols) {
  const auto group = [&](const uint8_t* codes_at, const uint8_t* scales_at)
      __attribute__((always_inline)) {
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      const typename A::Codes c = A::LoadCodes(codes_at + i * A::kWidth * 4);
      float* to = dst + i * plane_stride;
      A::Store(to, A::template Decode<0>(c));
      A::Store(to + 1 * A::kWidth, A::template Decode<1>(c));
      A::Store(to + 2 * A::kWidth, A::template Decode<2>(c));
      A::Store(to + 3 * A::kWidth, A::template Decode<3>(c));
      A::Store(to + 4 * A::kWidth, A::template Decode<4>(c));
      A::Store(to + 5 * A::kWidth, A::template Decode<5>(c));
      A::Store(to + 6 * A::kWidth, A::template Decode<6>(c));
      A::Store(to + 7 * A::kWidth, A::template Decode<7>(c));
      A::Store(scale_dst + i * A::kWidth, A::Scales(scales_at, i));
    }
    dst += 8 * A::kWidth;
    scale_dst += kLanes;
  };
  int64_t k = 0;
  for (; k + kMxGroup <= cols; k += kMxGroup) group(codes + k / 2, scales + k / kMxBlock);
  if (k < cols) {
    PaddedMxTail tail;
    PaddedMxTail::Fill(&tail, codes + k / 2, scales + k / kMxBlock, cols - k);
    group(tail.codes, tail.scales);
  }
}

template <class A, bool kStart>
struct DotTileCall {
  LaneSums acc;
  const float* w;
  int64_t w_stride;
  const float* const* x;
  int64_t x_at;
  int64_t steps;
  template <int P>
  void Run() const {
    DotTile<A, P, kStart>(acc, w, w_stride, x, x_at, steps);
  }
};

template <class A, bool kStart>
struct MxTileCall {
  float* lanes;
  const float* w;
  const float* scales;
  const float* const* x;
  int64_t x_at;
  int64_t groups;
  template <int P>
  void Run() const {
    MxTile<A, P, kStart>(lanes, w, scales, x, x_at, groups);
  }
};

template <class A, class W>
struct DensePanel {
  static constexpr int64_t kUnit = kLanes;  // columns are padded to a multiple of this
  static constexpr bool kRowScale = W::kRowScale;

  static void Widen(const Panel<A>& panel, int64_t r, const WeightRows& w, int64_t row,
                    const PanelColumns& cols) {
    WidenRow<A, W>(panel.weights + r * kPanelStride, cols.padded / kPlanes<A>,
                   w.data + row * w.row_bytes, cols.begin, cols.end);
  }
  template <bool kStart>
  static void Tile(const Panel<A>& panel, int64_t p, int64_t r, int plane, const PanelColumns& cols,
                   const float* const* x, int64_t x_at, int64_t some) {
    const int64_t plane_floats = cols.padded / kPlanes<A>;
    RunTile<A::kTilePositions>(
        DotTileCall<A, kStart>{{panel.Lanes(p, r, plane), kPanelLaneStride},
                               panel.weights + r * kPanelStride + plane * plane_floats,
                               kPanelStride,
                               x,
                               x_at,
                               cols.padded / kLanes},
        some);
  }
};

template <class A>
struct Mxfp4Panel {
  static constexpr int64_t kUnit = kMxGroup;
  static constexpr bool kRowScale = false;

  static void Widen(const Panel<A>& panel, int64_t r, const WeightRows& w, int64_t row,
                    const PanelColumns& cols) {
    DecodeMxRow<A>(panel.weights + r * kPanelStride, panel.scales + r * kPanelScaleStride,
                   cols.padded / kPlanes<A>, w.data + row * w.row_bytes + cols.begin / 2,
                   w.scales + row * w.scale_bytes + cols.begin / kMxBlock, cols.end - cols.begin);
  }
  template <bool kStart>
  static void Tile(const Panel<A>& panel, int64_t p, int64_t r, int plane, const PanelColumns& cols,
                   const float* const* x, int64_t x_at, int64_t some) {
    const int64_t plane_floats = cols.padded / kPlanes<A>;
    RunTile<A::kTilePositions>(
        MxTileCall<A, kStart>{panel.Lanes(p, r, plane),
                              panel.weights + r * kPanelStride + plane * plane_floats,
                              panel.scales + r * kPanelScaleStride + plane * A::kWidth, x, x_at,
                              cols.padded / kMxGroup},
        some);
  }
};

// Asks for the bytes [begin, end) of some equally spaced rows, a few cache lines at a time, while
// others are in work.
class RowPrefetch {
 public:
  DF_LANE_FN RowPrefetch Of(const uint8_t* data, int64_t stride, int64_t rows, int64_t bytes) {
    RowPrefetch all;
    all.row_ = data;
    all.stride_ = stride;
    all.rows_ = bytes > 0 ? rows : 0;
    all.bytes_ = bytes;
    all.at_ = 0;
    return all;
  }
  inline __attribute__((always_inline)) int64_t lines() const {
    return rows_ * ((bytes_ + 63) / 64);
  }
  inline __attribute__((always_inline)) void Next(int64_t lines) {
    for (; lines > 0 && rows_ > 0; --lines) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += 64;
      if (at_ >= bytes_) {
        at_ = 0;
        row_ += stride_;
        --rows_;
      }
    }
  }

 private:
  const uint8_t* row_;
  int64_t stride_;
  int64_t rows_;
  int64_t bytes_;
  int64_t at_;
};

// All positions times the rows and columns of the panel in work. The positions of a tile stay in
// the L1 cache while the panel's rows pass; meanwhile the next panel's weights come from memory.
template <class A, class Format, bool kStart>
inline void PanelSweep(const MatMulJob& job, const Panel<A>& panel, int64_t rows,
                       const PanelColumns& cols, RowPrefetch next) {
  constexpr int P = A::kTilePositions;
  const int64_t x_plane = RoundUpTo(job.cols, Format::kUnit) / kPlanes<A>;
  const int64_t plane_floats = cols.padded / kPlanes<A>;
  int64_t tiles = (job.n + P - 1) / P;
  const int64_t lines = next.lines() / (tiles * kPlanes<A> * (rows / kTileRows)) + 1;
  for (int64_t p = 0; p < job.n; --tiles) {
    const int64_t some = (job.n - p + tiles - 1) / tiles;  // about the same for all tiles
    const float* x[P];
    for (int64_t i = 0; i < some; ++i) x[i] = RowAt<A>(job.x, p + i);
    for (int plane = 0; plane < kPlanes<A>; ++plane) {
      const int64_t x_at = plane * x_plane + cols.begin / kPlanes<A>;
      int64_t ahead = p + some;
      for (int64_t r = 0; r < rows; r += kTileRows) {
        Format::template Tile<kStart>(panel, p, r, plane, cols, x, x_at, some);
        next.Next(lines);
        if (ahead < job.n && ahead < p + 2 * some) {
          const float* soon = RowAt<A>(job.x, ahead++) + x_at;
          for (int64_t k = 0; k < plane_floats; k += 16) __builtin_prefetch(soon + k, 0, 2);
        }
      }
    }
    p += some;
  }
}

// The weights of the panel that follows the one at (row, column k).
template <class A>
inline RowPrefetch NextPanel(const MatMulJob& job, const WeightRows& w, int64_t row, int64_t k) {
  int64_t next_row = row;
  int64_t next_k = k + kPanelCols;
  if (next_k >= job.cols) {
    next_row += kPanelRows;
    next_k = 0;
  }
  const int64_t rows_left = job.rows - next_row;
  if (rows_left <= 0) return RowPrefetch::Of(w.data, 0, 0, 0);
  const int64_t cols = job.cols - next_k < kPanelCols ? job.cols - next_k : kPanelCols;
  return RowPrefetch::Of(w.data + next_row * w.row_bytes + next_k * w.row_bytes / job.cols,
                         w.row_bytes, rows_left < kPanelRows ? rows_left : kPanelRows,
                         cols * w.row_bytes / job.cols);
}

template <class A, class Format>
inline void PanelMatMul(const MatMulJob& job, const WeightRows& w, float* scratch) {
  const Panel<A> panel(scratch);
  for (int64_t row = 0; row < job.rows; row += kPanelRows) {
    const int64_t rows = job.rows - row < kPanelRows ? job.rows - row : kPanelRows;
    // Tiles are whole: the last row of the weight fills them up.
    const int64_t tile_rows = RoundUpTo(rows, kTileRows);
    for (int64_t k = 0; k < job.cols; k += kPanelCols) {
      PanelColumns cols{k, job.cols - k < kPanelCols ? job.cols : k + kPanelCols, 0};
      cols.padded = RoundUpTo(cols.end - k, Format::kUnit);
      for (int64_t r = 0; r < tile_rows; ++r) {
        Format::Widen(panel, r, w, row + (r < rows ? r : rows - 1), cols);
      }
      const RowPrefetch next = NextPanel<A>(job, w, row, k);
      if (k == 0) {
        PanelSweep<A, Format, true>(job, panel, tile_rows, cols, next);
      } else {
        PanelSweep<A, Format, false>(job, panel, tile_rows, cols, next);
      }
    }
    for (int64_t p = 0; p < job.n; ++p) {
      float* y = RowAt<A>(job.y, p) + row;
      for (int64_t r = 0; r < rows; r += kLanes) {
        StoreSums<A>(y + r, panel.lanes + (p * kPanelRows + r) * kLanes,
                     rows - r < kLanes ? rows - r : kLanes,
                     Format::kRowScale ? w.scales + (row + r) * 4 : nullptr);
      }
    }
  }
}

template <class A>
inline void MatMulRows(const MatMulJob& job, float* scratch) {
  WeightRows w{reinterpret_cast<const uint8_t*>(job.data), 0,
               reinterpret_cast<const uint8_t*>(job.scales), 0};
  const bool stream = job.n <= A::kStreamPositions;
  switch (job.format) {
    case WeightFormat::kF32:
      w.row_bytes = job.cols * 4;
      return stream ? StreamMatMul<A, DenseStream<A, F32Weights<A>>>(job, w)
                    : PanelMatMul<A, DensePanel<A, F32Weights<A>>>(job, w, scratch);
    case WeightFormat::kBf16:
      w.row_bytes = job.cols * 2;
      return stream ? StreamMatMul<A, DenseStream<A, Bf16Weights<A>>>(job, w)
                    : PanelMatMul<A, DensePanel<A, Bf16Weights<A>>>(job, w, scratch);
    case WeightFormat::kInt8:
      w.row_bytes = job.cols;
      return stream ? StreamMatMul<A, DenseStream<A, Int8Weights<A>>>(job, w)
                    : PanelMatMul<A, DensePanel<A, Int8Weights<A>>>(job, w, scratch);
    case WeightFormat::kMxfp4:
      w.row_bytes = job.cols / 2;
      w.scale_bytes = job.cols / kMxBlock;
      return stream ? StreamMatMul<A, Mxfp4Stream<A>>(job, w)
                    : PanelMatMul<A, Mxfp4Panel<A>>(job, w, scratch);
  }
}

}  // namespace deltafin
