// The two register tiles that everything with many positions is made of, and their loops.
//   Dot tile:   4 rows x P positions of 16-lane sums along K.
//   Outer tile: P rows x V registers of out[p] += coef[p][s] * c[s] for s in order.
#pragma once

#include "device/cpu/pack_impl.h"

namespace deltafin {

inline constexpr int kTileRows = 4;

// Where the lanes of (row r, position p) of a tile are kept: lanes + r * 16 + p * position_stride.
struct LaneSums {
  float* lanes;
  int64_t position_stride;
};

// sum[r][p] = fma(row r, position p, sum[r][p]) for one register of each, row[r] + w_at and
// x[p] + x_at; the first of a chain only multiplies.
template <class A, int P, bool kFirst>
DF_LANE_FN void TileStep(typename A::F (&sum)[kTileRows][P], const float* const (&row)[kTileRows],
                         int64_t w_at, const float* const (&x)[P], int64_t x_at) {
  using F = typename A::F;
  const auto add = [](F & to, F w, F value) __attribute__((always_inline)) {
    to = kFirst ? A::Mul(w, value) : A::Fma(w, value, to);
  };
  if constexpr (kPlanes<A> == 2) {
    // 16 registers: the positions' values stay, the rows' come one by one.
    F xs[P];
    DF_UNROLL for (int p = 0; p < P; ++p) xs[p] = A::Load(x[p] + x_at);
    DF_UNROLL for (int r = 0; r < kTileRows; ++r) {
      const F w = A::Load(row[r] + w_at);
      DF_UNROLL for (int p = 0; p < P; ++p) add(sum[r][p], w, xs[p]);
    }
  } else {
    F w[kTileRows];
    DF_UNROLL for (int r = 0; r < kTileRows; ++r) w[r] = A::Load(row[r] + w_at);
    DF_UNROLL for (int p = 0; p < P; ++p) {
      const F value = A::Load(x[p] + x_at);
      DF_UNROLL for (int r = 0; r < kTileRows; ++r) add(sum[r][p], w[r], value);
    }
  }
}

// The lanes of `steps` registers of one plane; w rows are `w_stride` floats apart.
template <class A, int P>
inline void DotTile(LaneSums acc, const float* w, int64_t w_stride, const float* const* x,
                    int64_t x_at, int64_t steps) {
  typename A::F sum[kTileRows][P];
  DF_UNROLL for (int r = 0; r < kTileRows; ++r) {
    DF_UNROLL for (int p = 0; p < P; ++p) sum[r][p] = A::Zero();
  }
  const float* at[P];
  DF_UNROLL for (int p = 0; p < P; ++p) at[p] = x[p] + x_at;
  const float* const row[kTileRows] = {w, w + w_stride, w + 2 * w_stride, w + 3 * w_stride};
  for (int64_t k = 0; k < steps * A::kWidth; k += A::kWidth) {
    TileStep<A, P, false>(sum, row, k, at, k);
  }
  DF_UNROLL for (int r = 0; r < kTileRows; ++r) {
    DF_UNROLL for (int p = 0; p < P; ++p) {
      A::Store(acc.lanes + r * kLanes + p * acc.position_stride, sum[r][p]);
    }
  }
}

// Calls tile.template Run<P>() with P = positions, 1 .. kMost.
template <int kMost, class Tile>
DF_LANE_FN void RunTile(const Tile& tile, int64_t positions) {
  if constexpr (kMost > 1) {
    if (positions < kMost) return RunTile<kMost - 1>(tile, positions);
  }
  tile.template Run<kMost>();
}

// What an outer tile does with its sums: the first block of a run stores them, the later ones merge
// them, O = fma(O, a, sum * b).
struct OuterTarget {
  float* out;
  int64_t out_stride;
  const float* a;  // nullptr: store
  const float* b;
};

// Rows p of `coef` are coef_stride apart, rows s of `c` c_stride; V registers of columns.
template <class A, int P, int V>
inline void OuterTile(const OuterTarget& to, const float* coef, int64_t coef_stride, const float* c,
                      int64_t c_stride, int64_t count) {
  using F = typename A::F;
  F sum[P][V];
  DF_UNROLL for (int p = 0; p < P; ++p) {
    DF_UNROLL for (int v = 0; v < V; ++v) sum[p][v] = A::Zero();
  }
  for (int64_t s = 0; s < count; ++s, c += c_stride) {
    F row[V];
    DF_UNROLL for (int v = 0; v < V; ++v) row[v] = A::Load(c + v * A::kWidth);
    DF_UNROLL for (int p = 0; p < P; ++p) {
      const F e = A::Set1(coef[p * coef_stride + s]);
      DF_UNROLL for (int v = 0; v < V; ++v) sum[p][v] = A::Fma(e, row[v], sum[p][v]);
    }
  }
  DF_UNROLL for (int p = 0; p < P; ++p) {
    float* out = to.out + p * to.out_stride;
    if (to.a == nullptr) {
      DF_UNROLL for (int v = 0; v < V; ++v) A::Store(out + v * A::kWidth, sum[p][v]);
    } else {
      const F a = A::Set1(to.a[p]);
      const F b = A::Set1(to.b[p]);
      DF_UNROLL for (int v = 0; v < V; ++v) {
        float* o = out + v * A::kWidth;
        A::Store(o, A::Fma(A::Load(o), a, A::Mul(sum[p][v], b)));
      }
    }
  }
}

template <class A, int V>
struct OuterTileCall {
  OuterTarget to;
  const float* coef;
  int64_t coef_stride;
  const float* c;
  int64_t c_stride;
  int64_t count;
  template <int P>
  void Run() const {
    OuterTile<A, P, V>(to, coef, coef_stride, c, c_stride, count);
  }
};

inline constexpr int kOuterRows = 6;

// `rows` rows times `registers` registers of columns, both strided by whole registers. The columns
// of `c` that a tile needs (count x V registers) stay in the L1 cache over all rows.
template <class A>
inline void OuterProduct(const OuterTarget& to, const float* coef, int64_t coef_stride,
                         int64_t rows, const float* c, int64_t c_stride, int64_t count,
                         int64_t registers) {
  constexpr int V = A::kOuterVectors;
  const auto columns = [&]<int kVectors>(int64_t at) {
    for (int64_t p = 0; p < rows; p += kOuterRows) {
      const int64_t some = rows - p < kOuterRows ? rows - p : kOuterRows;
      const OuterTarget part{to.out + p * to.out_stride + at, to.out_stride,
                             to.a == nullptr ? nullptr : to.a + p,
                             to.a == nullptr ? nullptr : to.b + p};
      RunTile<kOuterRows>(OuterTileCall<A, kVectors>{part, coef + p * coef_stride, coef_stride,
                                                     c + at, c_stride, count},
                          some);
    }
  };
  int64_t v = 0;
  for (; v + V <= registers; v += V) columns.template operator()<V>(v * A::kWidth);
  for (; v < registers; ++v) columns.template operator()<1>(v * A::kWidth);
}

}  // namespace deltafin
