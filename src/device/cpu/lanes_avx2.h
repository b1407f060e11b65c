// One AVX2 register as seen by the kernels: 8 of the 16 lanes of docs/numerics.md, so two "planes".
// Included only by kernels_avx2.cc. Needs AVX2 and FMA.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "device/cpu/kernels.h"

namespace deltafin {

struct Avx2Lanes {
  using F = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kAccumulators = 4;
  // Rows are too short for the processor's own prefetching to get up to speed: each asks for the
  // one that comes this many rows later. Past the end of the weight that is a hint without effect.
  static constexpr int64_t kAheadRows = 8;
  static constexpr bool kAsksInOrder = false;  // at one position, too
  static constexpr int kStreamPositions = 8;   // from here on a panel of widened weights is faster
  static constexpr int kTilePositions = 3;
  static constexpr int64_t kPanelCols = 1024;  // 192 KiB of weights, for the L2 cache
  // The next weights are asked for between tiles of positions alone: docs/experiments.md.
  static constexpr bool kAsksBetweenQuads = false;
  static constexpr int kOuterVectors = 2;
  static constexpr int kStateVectors = 4;
  static constexpr double kFmaNs = 0.03;

  DF_LANE_FN F Zero() { return _mm256_setzero_ps(); }
  DF_LANE_FN F Set1(float v) { return _mm256_set1_ps(v); }
  DF_LANE_FN F Load(const float* p) { return _mm256_loadu_ps(p); }
  DF_LANE_FN void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  DF_LANE_FN __m256i First(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  // The first n lanes, 0 < n < kWidth; the others are +0, nothing past them is touched.
  DF_LANE_FN F LoadPartial(const float* p, int64_t n) { return _mm256_maskload_ps(p, First(n)); }
  DF_LANE_FN void StorePartial(float* p, F v, int64_t n) { _mm256_maskstore_ps(p, First(n), v); }

  // out[w] lane c = p[4 c + w], w = 0 .. 3: reads 4 * kWidth floats.
  DF_LANE_FN void LoadColumns4(const float* p, F* out) {
    F row[4];  // register r holds the channels r and r + 4
    for (int r = 0; r < 4; ++r) {
      row[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 4 * r)),
                                    _mm_loadu_ps(p + 4 * (r + 4)), 1);
    }
    const F a = _mm256_unpacklo_ps(row[0], row[1]);
    const F b = _mm256_unpacklo_ps(row[2], row[3]);
    const F c = _mm256_unpackhi_ps(row[0], row[1]);
    const F d = _mm256_unpackhi_ps(row[2], row[3]);
    out[0] = _mm256_shuffle_ps(a, b, 0x44);
    out[1] = _mm256_shuffle_ps(a, b, 0xee);
    out[2] = _mm256_shuffle_ps(c, d, 0x44);
    out[3] = _mm256_shuffle_ps(c, d, 0xee);
  }

  DF_LANE_FN F Add(F a, F b) { return _mm256_add_ps(a, b); }
  DF_LANE_FN F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  DF_LANE_FN F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  DF_LANE_FN F Div(F a, F b) { return _mm256_div_ps(a, b); }
  DF_LANE_FN F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  DF_LANE_FN F Max(F a, F b) { return _mm256_max_ps(a, b); }  // a > b ? a : b
  DF_LANE_FN F Min(F a, F b) { return _mm256_min_ps(a, b); }  // a < b ? a : b
  DF_LANE_FN F Abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  DF_LANE_FN F Negate(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  // |magnitude| is not taken: its sign must be positive.
  DF_LANE_FN F WithSignOf(F magnitude, F sign) {
    return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
  }
  DF_LANE_FN F SelectLess(F a, F b, F then, F otherwise) {
    return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  // (y * 2^h) * 2^(n - h), h = floor(n / 2), n an integer.
  DF_LANE_FN F TimesPow2(F y, F n) {
    const __m256i i = _mm256_cvtps_epi32(n);
    const __m256i h = _mm256_srai_epi32(i, 1);
    return _mm256_mul_ps(_mm256_mul_ps(y, Pow2(h)), Pow2(_mm256_sub_epi32(i, h)));
  }

  DF_LANE_FN F LoadBf16(const uint8_t* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  DF_LANE_FN F LoadInt8(const uint8_t* p) {
    const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
  }
  // To nearest even; v is not NaN.
  DF_LANE_FN void StoreBf16(uint16_t* p, F v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i high = _mm256_srli_epi32(up, 16);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
  }

  // The packed E2M1 codes of kWidth lanes, eight a lane, looked up as bf16, two in each 32-bit
  // lane.
  struct Codes {
    __m256i pair[4];  // weights (0, 2), (4, 6), (1, 3), (5, 7) as (low, high) half
  };
  DF_LANE_FN Codes LoadCodes(const uint8_t* p) {
    // Bytes 0, 1 of four lanes and then bytes 2, 3: the interleave below then keeps lanes in place.
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    const __m256i bytes =
        _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), order);
    const __m256i even = _mm256_and_si256(bytes, nibble);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
    // bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, low and high byte.
    const __m256i low = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
    const __m256i high = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64));
    const __m256i even_low = _mm256_shuffle_epi8(low, even);
    const __m256i even_high = _mm256_shuffle_epi8(high, even);
    const __m256i odd_low = _mm256_shuffle_epi8(low, odd);
    const __m256i odd_high = _mm256_shuffle_epi8(high, odd);
    return {{_mm256_unpacklo_epi8(even_low, even_high), _mm256_unpackhi_epi8(even_low, even_high),
             _mm256_unpacklo_epi8(odd_low, odd_high), _mm256_unpackhi_epi8(odd_low, odd_high)}};
  }
  // Asks for a cache line.
  DF_LANE_FN void Ask(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }
  // Weight j of each lane.
  template <int j>
  DF_LANE_FN F Decode(const Codes& codes) {
    const __m256i pair = codes.pair[(j % 2) * 2 + j / 4];
    if constexpr (j % 4 < 2) return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
    return _mm256_castsi256_ps(
        _mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))));
  }
  static constexpr int kGroupsOfScales = 1;  // that are taken together: 1 or 4
  // The scales of half a group: byte i / 4 for lane i. The byte goes to the top of its lane; one
  // shift makes it the exponent; 2^-127 (byte 0) is the subnormal 0x00400000.
  DF_LANE_FN F Scales(const uint8_t* p, int plane) {
    int16_t two;
    __builtin_memcpy(&two, p + 2 * plane, 2);
    const __m256i spread = _mm256_setr_epi32(0x00808080, 0x00808080, 0x00808080, 0x00808080,
                                             0x01808080, 0x01808080, 0x01808080, 0x01808080);
    const __m256i top = _mm256_shuffle_epi8(_mm256_set1_epi16(two), spread);
    return _mm256_castsi256_ps(
        _mm256_max_epu32(_mm256_srli_epi32(top, 1), _mm256_set1_epi32(0x00400000)));
  }

  // out[i] = Sum16 of the 16 lanes at acc + 16 i, for i = 0 .. 15.
  DF_LANE_FN void Sum16Block(float* out, const float* acc) {
    for (int half = 0; half < 2; ++half, acc += 8 * 16) {
      __m256 u[4];  // the u[0..3] of two sums each: i and i + 4
      for (int i = 0; i < 4; ++i) {
        const float* a = acc + 16 * i;
        const float* b = acc + 16 * (i + 4);
        const __m256 ta = _mm256_add_ps(Load(a), Load(a + 8));
        const __m256 tb = _mm256_add_ps(Load(b), Load(b + 8));
        u[i] = _mm256_add_ps(_mm256_permute2f128_ps(ta, tb, 0x20),
                             _mm256_permute2f128_ps(ta, tb, 0x31));
      }
      const __m256 v0 =
          _mm256_add_ps(_mm256_shuffle_ps(u[0], u[1], 0x44), _mm256_shuffle_ps(u[0], u[1], 0xee));
      const __m256 v1 =
          _mm256_add_ps(_mm256_shuffle_ps(u[2], u[3], 0x44), _mm256_shuffle_ps(u[2], u[3], 0xee));
      Store(out + 8 * half,
            _mm256_add_ps(_mm256_shuffle_ps(v0, v1, 0x88), _mm256_shuffle_ps(v0, v1, 0xdd)));
    }
  }
  DF_LANE_FN float Sum16(const F* planes) {
    const __m256 t = _mm256_add_ps(planes[0], planes[1]);
    const __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    const __m128 v = _mm_add_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
  }

 private:
  DF_LANE_FN F Pow2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
};

}  // namespace deltafin
