// The orders in which the kernels keep rows of floats. A row of K elements, padded with +0, is
// split into kPlanes planes, one for each register that the 16 lanes need:
//   dense: plane i holds lanes [i kWidth, (i + 1) kWidth) of element groups 0, 1, 2, ... of 16;
//   MXFP4: for each group of 128 and j = 0 .. 7, weight j of those lanes (docs/numerics.md).
// So whatever the width, a sweep over one plane reads memory in order.
#pragma once

#include "device/cpu/math_impl.h"

namespace deltafin {

// Weight formats as the kernels load them: kWidth values from byte offset `at` elements on.
template <class A>
struct F32Weights {
  static constexpr int64_t kBytes = 4;
  static constexpr bool kRowScale = false;
  DF_LANE_FN typename A::F Load(const uint8_t* row, int64_t at) {
    return A::Load(reinterpret_cast<const float*>(row + 4 * at));
  }
};
template <class A>
struct Bf16Weights {
  static constexpr int64_t kBytes = 2;
  static constexpr bool kRowScale = false;
  DF_LANE_FN typename A::F Load(const uint8_t* row, int64_t at) {
    return A::LoadBf16(row + 2 * at);
  }
};
template <class A>
struct Int8Weights {
  static constexpr int64_t kBytes = 1;
  static constexpr bool kRowScale = true;
  DF_LANE_FN typename A::F Load(const uint8_t* row, int64_t at) { return A::LoadInt8(row + at); }
};

// The last cols % 16 elements of a row, zero padded.
template <class W>
struct PaddedTail {
  uint8_t bytes[kLanes * W::kBytes];
  PaddedTail(const uint8_t* row, int64_t at, int64_t cols) {
    __builtin_memset(bytes, 0, sizeof(bytes));
    __builtin_memcpy(bytes, row + at * W::kBytes, static_cast<size_t>((cols - at) * W::kBytes));
  }
};

// Elements [begin, end) of a row in dense order; begin is a multiple of 16, planes are
// `plane_stride` floats apart.
template <class A, class W>
inline void WidenRow(float* dst, int64_t plane_stride, const uint8_t* row, int64_t begin,
                     int64_t end) {
  int64_t k = begin;
  for (; k + kLanes <= end; k += kLanes, dst += A::kWidth) {
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      A::Store(dst + i * plane_stride, W::Load(row, k + i * A::kWidth));
    }
  }
  if (k < end) {
    const PaddedTail<W> tail(row, k, end);
    DF_UNROLL for (int i = 0; i < kPlanes<A>; ++i) {
      A::Store(dst + i * plane_stride, W::Load(tail.bytes, i * A::kWidth));
    }
  }
}

// Elements [begin, end) of a packed row of `cols`; begin is a multiple of 128, src is element
// begin.
template <class A>
inline void PackDense(float* row, const float* src, int64_t begin, int64_t end, int64_t cols) {
  WidenRow<A, F32Weights<A>>(row + begin / kPlanes<A>, RoundUpTo(cols, kLanes) / kPlanes<A>,
                             reinterpret_cast<const uint8_t*>(src), 0, end - begin);
}

// The inverse, for the first `cols` elements.
template <class A>
inline void UnpackDense(float* dst, const float* src, int64_t cols) {
  const int64_t plane_stride = RoundUpTo(cols, kLanes) / kPlanes<A>;
  for (int64_t k = 0; k < cols; k += kLanes, src += A::kWidth) {
    for (int i = 0; i < kPlanes<A>; ++i) {
      const int64_t at = k + i * A::kWidth;
      if (at >= cols) break;
      const typename A::F v = A::Load(src + i * plane_stride);
      if (at + A::kWidth <= cols) {
        A::Store(dst + at, v);
      } else {
        A::StorePartial(dst + at, v, cols - at);
      }
    }
  }
}

template <class A>
inline void PackMxfp4(float* row, const float* src, int64_t begin, int64_t end, int64_t cols) {
  const int64_t plane_stride = RoundUpTo(cols, kMxGroup) / kPlanes<A>;
  float* dst = row + begin / kPlanes<A>;
  for (int64_t base = 0; base < end - begin; base += kMxGroup, dst += kMxGroup / kPlanes<A>) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      float* column = dst + lane / A::kWidth * plane_stride + lane % A::kWidth;
      for (int64_t j = 0; j < 8; ++j) {
        const int64_t at = base + 8 * lane + j;
        column[j * A::kWidth] = at < end - begin ? src[at] : 0.0f;
      }
    }
  }
}

}  // namespace deltafin
