// MatMul at many positions: a panel of weight rows x columns is widened to fp32 once, stays in the
// L2 cache, and serves all positions with register tiles.
#pragma once

#include "device/cpu/stream_impl.h"
#include "device/cpu/tile_impl.h"

namespace deltafin {

// Everything lies in the order in which the tiles read and write it: with weights and lanes in
// rows, a processor with 512 KiB of L2 cache has a tenth less speed (docs/experiments.md). A quad
// is four rows; their registers lie beside each other.
template <class A>
struct Panel {
  float* weights;  // [kPanelRows / 4][plane][step][4]
  float* scales;   // [kPanelRows / 4][plane][group][4], MXFP4 only
  float* lanes;    // for each tile of positions: [plane][quad][4][position]

  static constexpr int64_t kRowScales = A::kPanelCols / kMxGroup * kLanes;
  static constexpr int64_t kStep = kTileRows * A::kWidth;  // a register of each row of a quad
  static constexpr int64_t kQuadWeights = kTileRows * A::kPanelCols;
  static constexpr int64_t kQuadScales = kTileRows * kRowScales;

  explicit Panel(float* scratch)
      : weights(scratch),
        scales(weights + kPanelRows * A::kPanelCols),
        lanes(scales + kPanelRows * kRowScales) {}
  // The first register of a row.
  float* Weights(int64_t row) const { return At(weights, kQuadWeights, row); }
  float* Scales(int64_t row) const { return At(scales, kQuadScales, row); }
  // Of the tile that begins with this position.
  float* Lanes(int64_t position) const { return lanes + position * kPanelRows * kLanes; }

 private:
  static float* At(float* base, int64_t quad_floats, int64_t row) {
    return base + row / kTileRows * quad_floats + row % kTileRows * A::kWidth;
  }
};

// The part of a panel that is in work: columns [begin, end), `padded` of them with the padding.
struct PanelColumns {
  int64_t begin;
  int64_t end;
  int64_t padded;
};

// Elements [begin, end) of a row; its registers are kStep floats apart.
template <class A, class W>
inline void WidenPanelRow(float* dst, int64_t plane_stride, const uint8_t* row, int64_t begin,
                          int64_t end) {
  const auto group = [&](const uint8_t* from, int64_t at) __attribute__((always_inline)) {
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      A::Store(dst + i * plane_stride, W::Load(from, at + i * A::kWidth));
    }
    dst += Panel<A>::kStep;
  };
  int64_t k = begin;
  for (; k + kLanes <= end; k += kLanes) group(row, k);
  if (k < end) group(PaddedTail<W>(row, k, end).bytes, 0);
}

template <class A>
inline void DecodeMxRow(float* dst, int64_t plane_stride, float* scale_dst,
                        int64_t scale_plane_stride, const uint8_t* codes, const uint8_t* scales,
                        int64_t cols) {
  constexpr int64_t kStep = Panel<A>::kStep;
  const auto group = [&](const uint8_t* codes_at, const uint8_t* scales_at)
      __attribute__((always_inline)) {
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      const typename A::Codes c = A::LoadCodes(codes_at + i * A::kWidth * 4);
      float* to = dst + i * plane_stride;
      A::Store(to, A::template Decode<0>(c));
      A::Store(to + 1 * kStep, A::template Decode<1>(c));
      A::Store(to + 2 * kStep, A::template Decode<2>(c));
      A::Store(to + 3 * kStep, A::template Decode<3>(c));
      A::Store(to + 4 * kStep, A::template Decode<4>(c));
      A::Store(to + 5 * kStep, A::template Decode<5>(c));
      A::Store(to + 6 * kStep, A::template Decode<6>(c));
      A::Store(to + 7 * kStep, A::template Decode<7>(c));
      A::Store(scale_dst + i * scale_plane_stride, A::Scales(scales_at, i));
    }
    dst += 8 * kStep;
    scale_dst += kStep;
  };
  int64_t k = 0;
  for (; k + kMxGroup <= cols; k += kMxGroup) group(codes + k / 2, scales + k / kMxBlock);
  if (k < cols) {
    PaddedMxTail tail;
    PaddedMxTail::Fill(&tail, codes + k / 2, scales + k / kMxBlock, cols - k);
    group(tail.codes, tail.scales);
  }
}

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

// What is asked for while a tile's positions are in work: the next panel's weights, and the inputs
// of the positions that come next.
struct PanelAhead {
  RowPrefetch weights;
  int64_t lines;               // of the weights, for each quad of rows
  const float* const* inputs;  // one for each quad, while there are some
  int64_t num_inputs;
};

// One plane of all rows of a panel times the positions of a tile. All of it is one call: what
// stands between a quad and the next one is not free (docs/experiments.md).
struct PanelTiles {
  float* lanes;
  const float* weights;
  const float* scales;
  const float* const* x;
  int64_t x_at;
  int64_t plane_floats;
  int64_t quads;
  PanelAhead* ahead;

  inline __attribute__((always_inline)) void AskAhead(int64_t quad) const {
    ahead->weights.Next(ahead->lines);
    if (quad >= ahead->num_inputs) return;
    for (int64_t k = 0; k < plane_floats; k += 16) {
      __builtin_prefetch(ahead->inputs[quad] + x_at + k, 0, 2);
    }
  }
};

template <class A, int P, bool kStart>
inline void DotQuads(const PanelTiles& tiles) {
  constexpr int W = A::kWidth;
  const float* x[P];
  DF_UNROLL for (int p = 0; p < P; ++p) x[p] = tiles.x[p] + tiles.x_at;
  float* lanes = tiles.lanes;
  const float* w = tiles.weights;
  for (int64_t quad = 0; quad < tiles.quads; ++quad) {
    typename A::F sum[kTileRows][P];
    DF_UNROLL for (int r = 0; r < kTileRows; ++r) {
      DF_UNROLL for (int p = 0; p < P; ++p) {
        sum[r][p] = kStart ? A::Zero() : A::Load(lanes + (r * P + p) * W);
      }
    }
    const float* const row[kTileRows] = {w, w + W, w + 2 * W, w + 3 * W};
    for (int64_t k = 0; k < tiles.plane_floats; k += W) {
      TileStep<A, P, false>(sum, row, k * kTileRows, x, k);
    }
    DF_UNROLL for (int r = 0; r < kTileRows; ++r) {
      DF_UNROLL for (int p = 0; p < P; ++p) A::Store(lanes + (r * P + p) * W, sum[r][p]);
    }
    if constexpr (A::kAsksBetweenQuads) tiles.AskAhead(quad);
    lanes += P * Panel<A>::kStep;
    w += Panel<A>::kQuadWeights;
  }
}

// The same for MXFP4 weights that are decoded to floats: eight registers a group, then one fma with
// the group's scales. The partial sums fill the registers, so the lanes stay in memory (L1).
template <class A, int P, bool kStart>
inline void MxQuads(const PanelTiles& tiles) {
  using F = typename A::F;
  constexpr int W = A::kWidth;
  const float* x[P];
  DF_UNROLL for (int p = 0; p < P; ++p) x[p] = tiles.x[p] + tiles.x_at;
  float* lanes = tiles.lanes;
  const float* w = tiles.weights;
  const float* scales = tiles.scales;
  for (int64_t quad = 0; quad < tiles.quads; ++quad) {
    if constexpr (kStart) {
      DF_UNROLL for (int i = 0; i < kTileRows * P; ++i) A::Store(lanes + i * W, A::Zero());
    }
    const float* const row[kTileRows] = {w, w + W, w + 2 * W, w + 3 * W};
    const float* scale = scales;
    for (int64_t k = 0; k < tiles.plane_floats; scale += Panel<A>::kStep) {
      // Keeps the compiler from carrying the lanes in registers from group to group: it has none
      // left and would spill them (124 instead of 180 GFLOPS).
      asm volatile("" : "+r"(lanes));
      F part[kTileRows][P];
      TileStep<A, P, true>(part, row, k * kTileRows, x, k);
      k += W;
      _Pragma("GCC unroll 1") for (int j = 1; j < 8; ++j, k += W) {
        TileStep<A, P, false>(part, row, k * kTileRows, x, k);
      }
      DF_UNROLL for (int r = 0; r < kTileRows; ++r) {
        const F s = A::Load(scale + r * W);
        DF_UNROLL for (int p = 0; p < P; ++p) {
          float* to = lanes + (r * P + p) * W;
          A::Store(to, A::Fma(part[r][p], s, A::Load(to)));
        }
      }
    }
    if constexpr (A::kAsksBetweenQuads) tiles.AskAhead(quad);
    lanes += P * Panel<A>::kStep;
    w += Panel<A>::kQuadWeights;
    scales += Panel<A>::kQuadScales;
  }
}

template <class A, class W>
struct DensePanel {
  static constexpr int64_t kUnit = kLanes;  // columns are padded to a multiple of this
  static constexpr bool kRowScale = W::kRowScale;

  static void Widen(const Panel<A>& panel, int64_t r, const WeightRows& w, int64_t row,
                    const PanelColumns& cols) {
    WidenPanelRow<A, W>(panel.Weights(r), cols.padded / kPlanes<A> * kTileRows,
                        w.data + row * w.row_bytes, cols.begin, cols.end);
  }
  template <bool kStart>
  struct Call {
    PanelTiles tiles;
    template <int P>
    void Run() const {
      DotQuads<A, P, kStart>(tiles);
    }
  };
};

template <class A>
struct Mxfp4Panel {
  static constexpr int64_t kUnit = kMxGroup;
  static constexpr bool kRowScale = false;

  static void Widen(const Panel<A>& panel, int64_t r, const WeightRows& w, int64_t row,
                    const PanelColumns& cols) {
    DecodeMxRow<A>(panel.Weights(r), cols.padded / kPlanes<A> * kTileRows, panel.Scales(r),
                   cols.padded / kMxGroup * Panel<A>::kStep,
                   w.data + row * w.row_bytes + cols.begin / 2,
                   w.scales + row * w.scale_bytes + cols.begin / kMxBlock, cols.end - cols.begin);
  }
  template <bool kStart>
  struct Call {
    PanelTiles tiles;
    template <int P>
    void Run() const {
      MxQuads<A, P, kStart>(tiles);
    }
  };
};

// The positions in tiles of about the same size, kTilePositions at most.
template <class A>
class PositionTiles {
 public:
  explicit PositionTiles(int64_t n)
      : n_(n), count_((n + A::kTilePositions - 1) / A::kTilePositions) {}
  int64_t count() const { return count_; }
  int64_t Begin(int64_t tile) const { return tile * n_ / count_; }

 private:
  int64_t n_;
  int64_t count_;
};

// All positions times the rows and columns of the panel in work. The positions of a tile stay in
// the L1 cache while the panel's rows pass; meanwhile the next panel's weights come from memory.
template <class A, class Format, bool kStart>
inline void PanelSweep(const MatMulJob& job, const Panel<A>& panel, int64_t rows,
                       const PanelColumns& cols, RowPrefetch next) {
  const int64_t x_plane = RoundUpTo(job.cols, Format::kUnit) / kPlanes<A>;
  const int64_t quads = rows / kTileRows;
  const int64_t plane_steps = cols.padded / kLanes;
  const PositionTiles<A> tiles(job.n);
  const float* inputs[2][A::kTilePositions];
  const auto point = [&](const float** x, int64_t tile) {
    for (int64_t p = tiles.Begin(tile); p < tiles.Begin(tile + 1); ++p) {
      *x++ = RowAt<A>(job.x, p) + cols.begin / kPlanes<A>;
    }
  };
  PanelAhead ahead{next, next.lines() / (tiles.count() * kPlanes<A> * quads) + 1, nullptr, 0};
  point(inputs[0], 0);
  for (int64_t tile = 0; tile < tiles.count(); ++tile) {
    const int64_t p = tiles.Begin(tile);
    const int64_t some = tiles.Begin(tile + 1) - p;
    ahead.num_inputs = 0;
    if (tile + 1 < tiles.count()) {
      ahead.inputs = inputs[(tile + 1) % 2];
      point(inputs[(tile + 1) % 2], tile + 1);
      ahead.num_inputs = tiles.Begin(tile + 2) - tiles.Begin(tile + 1);
    }
    for (int plane = 0; plane < kPlanes<A>; ++plane) {
      const PanelTiles part{panel.Lanes(p) + plane * quads * some * Panel<A>::kStep,
                            panel.weights + plane * plane_steps * Panel<A>::kStep,
                            panel.scales + plane * plane_steps / 8 * Panel<A>::kStep,
                            inputs[tile % 2],
                            plane * x_plane,
                            plane_steps * A::kWidth,
                            quads,
                            &ahead};
      RunTile<A::kTilePositions>(typename Format::template Call<kStart>{part}, some);
      if constexpr (!A::kAsksBetweenQuads) ahead.weights.Next(ahead.lines * quads);
    }
  }
}

// y = the sums of the panel's lanes, `rows` of them from `row` on.
template <class A>
inline void StorePanel(const MatMulJob& job, const Panel<A>& panel, int64_t row, int64_t rows,
                       const uint8_t* row_scales) {
  const PositionTiles<A> tiles(job.n);
  const int64_t quads = (rows + kTileRows - 1) / kTileRows;
  alignas(64) float lanes[kLanes * kLanes];
  for (int64_t tile = 0; tile < tiles.count(); ++tile) {
    const int64_t p = tiles.Begin(tile);
    const int64_t some = tiles.Begin(tile + 1) - p;
    for (int64_t i = 0; i < some; ++i) {
      float* y = RowAt<A>(job.y, p + i) + row;
      for (int64_t r = 0; r < rows; r += kLanes) {
        const int64_t count = rows - r < kLanes ? rows - r : kLanes;
        for (int plane = 0; plane < kPlanes<A>; ++plane) {
          // A row's register, and some registers to the next row's.
          const float* from =
              panel.Lanes(p) + ((plane * quads * kTileRows + r) * some + i) * A::kWidth;
          for (int64_t j = 0; j < count; ++j, from += some * A::kWidth) {
            A::Store(lanes + j * kLanes + plane * A::kWidth, A::Load(from));
          }
        }
        StoreSums<A>(y + r, lanes, count, row_scales == nullptr ? nullptr : row_scales + r * 4);
      }
    }
  }
}

// The weights of the panel that follows the one at (row, column k).
template <class A>
inline RowPrefetch NextPanel(const MatMulJob& job, const WeightRows& w, int64_t row, int64_t k) {
  int64_t next_row = row;
  int64_t next_k = k + A::kPanelCols;
  if (next_k >= job.cols) {
    next_row += kPanelRows;
    next_k = 0;
  }
  const int64_t rows_left = job.rows - next_row;
  if (rows_left <= 0) return RowPrefetch::Of(w.data, 0, 0, 0);
  const int64_t cols = job.cols - next_k < A::kPanelCols ? job.cols - next_k : A::kPanelCols;
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
    for (int64_t k = 0; k < job.cols; k += A::kPanelCols) {
      PanelColumns cols{k, job.cols - k < A::kPanelCols ? job.cols : k + A::kPanelCols, 0};
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
    StorePanel<A>(job, panel, row, rows, Format::kRowScale ? w.scales + row * 4 : nullptr);
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
