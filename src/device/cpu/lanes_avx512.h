// One AVX-512 register as seen by the kernels: all 16 lanes of docs/numerics.md at once.
// Included only by kernels_avx512.cc. Needs F, BW, VL and DQ.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "device/cpu/kernels.h"

namespace deltafin {

struct Avx512Lanes {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kAccumulators = 16;  // of 16 lanes, that the streaming kernels hold
  // Rows are too short for the processor's own prefetching to get up to speed: each asks for the
  // one that comes this many rows later (8 of 3,584 MXFP4 weights are half a page too many: 15 GB/s
  // instead of 24). Past the end of the weight that is a hint without effect.
  static constexpr int64_t kAheadRows = 6;
  // At one position rows ask in the order of memory instead, so far ahead of where they are.
  static constexpr bool kAsksInOrder = true;
  static constexpr int64_t kAheadOfRow = 9216;  // of a row alone: beside its inputs in the L1 cache
  static constexpr int64_t kAheadOfRows = 1024;  // of rows side by side, past their ends
  static constexpr int kStreamPositions = 16;  // from here on a panel of widened weights is faster
  static constexpr int kTilePositions = 6;     // the dot tile is 4 rows x this many positions
  static constexpr int64_t kPanelCols = 512;   // of a panel: 96 KiB of weights, for the L2 cache
  static constexpr bool kAsksBetweenQuads = true;  // for the next weights and inputs (panel_impl.h)
  static constexpr int kOuterVectors = 4;  // the outer-product tile is 6 rows x this many vectors
  static constexpr int kStateVectors = 8;  // columns of a KDA state that are swept at once
  static constexpr double kFmaNs = 0.01;

  DF_LANE_FN F Zero() { return _mm512_setzero_ps(); }
  DF_LANE_FN F Set1(float v) { return _mm512_set1_ps(v); }
  DF_LANE_FN F Load(const float* p) { return _mm512_loadu_ps(p); }
  DF_LANE_FN void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
  DF_LANE_FN __mmask16 First(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  // The first n lanes, 0 < n < kWidth; the others are +0, nothing past them is touched.
  DF_LANE_FN F LoadPartial(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(First(n), p); }
  DF_LANE_FN void StorePartial(float* p, F v, int64_t n) { _mm512_mask_storeu_ps(p, First(n), v); }

  // out[w] lane c = p[4 c + w], w = 0 .. 3: reads 4 * kWidth floats.
  DF_LANE_FN void LoadColumns4(const float* p, F* out) {
    F row[4];  // register r holds the channels r, r + 4, r + 8, r + 12
    for (int r = 0; r < 4; ++r) {
      F v = _mm512_castps128_ps512(_mm_loadu_ps(p + 4 * r));
      v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 4 * (r + 4)), 1);
      v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 4 * (r + 8)), 2);
      row[r] = _mm512_insertf32x4(v, _mm_loadu_ps(p + 4 * (r + 12)), 3);
    }
    const F a = _mm512_unpacklo_ps(row[0], row[1]);
    const F b = _mm512_unpacklo_ps(row[2], row[3]);
    const F c = _mm512_unpackhi_ps(row[0], row[1]);
    const F d = _mm512_unpackhi_ps(row[2], row[3]);
    out[0] = _mm512_shuffle_ps(a, b, 0x44);
    out[1] = _mm512_shuffle_ps(a, b, 0xee);
    out[2] = _mm512_shuffle_ps(c, d, 0x44);
    out[3] = _mm512_shuffle_ps(c, d, 0xee);
  }

  DF_LANE_FN F Add(F a, F b) { return _mm512_add_ps(a, b); }
  DF_LANE_FN F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  DF_LANE_FN F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  DF_LANE_FN F Div(F a, F b) { return _mm512_div_ps(a, b); }
  DF_LANE_FN F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  DF_LANE_FN F Max(F a, F b) { return _mm512_max_ps(a, b); }  // a > b ? a : b
  DF_LANE_FN F Min(F a, F b) { return _mm512_min_ps(a, b); }  // a < b ? a : b
  DF_LANE_FN F Abs(F a) { return _mm512_abs_ps(a); }
  DF_LANE_FN F Negate(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  // |magnitude| is not taken: its sign must be positive.
  DF_LANE_FN F WithSignOf(F magnitude, F sign) {
    return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
  }
  DF_LANE_FN F SelectLess(F a, F b, F then, F otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
  }
  // (y * 2^h) * 2^(n - h), h = floor(n / 2), n an integer.
  DF_LANE_FN F TimesPow2(F y, F n) {
    const __m512i i = _mm512_cvtps_epi32(n);
    const __m512i h = _mm512_srai_epi32(i, 1);
    return _mm512_mul_ps(_mm512_mul_ps(y, Pow2(h)), Pow2(_mm512_sub_epi32(i, h)));
  }

  DF_LANE_FN F LoadBf16(const uint8_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  DF_LANE_FN F LoadInt8(const uint8_t* p) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
  }
  // To nearest even; v is not NaN.
  DF_LANE_FN void StoreBf16(uint16_t* p, F v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
  }

  // The packed E2M1 codes of kWidth lanes, eight a lane: from code 0, 1, 2 and 3 on.
  struct Codes {
    __m512i from[4];
  };
  DF_LANE_FN Codes LoadCodes(const uint8_t* p) {
    __m512i dwords = _mm512_loadu_si512(p);
    // The compiler would load them again for each shift.
    asm volatile("" : "+v"(dwords));
    return {{dwords, _mm512_srli_epi32(dwords, 4), _mm512_srli_epi32(dwords, 8),
             _mm512_srli_epi32(dwords, 12)}};
  }
  // Asks for a cache line, after the codes that were loaded before and before those that are loaded
  // later: the compiler would ask for the lines of several groups at once.
  DF_LANE_FN void Ask(const uint8_t* p) { asm volatile("prefetcht0 %0" : : "m"(*p)); }
  // Weight j of each lane. vpermps takes the low four bits of each index. What is in the upper half
  // of a lane is looked up there, as bf16 with zeros below: three shifts serve all eight weights.
  // vpermw takes five bits, the fifth from the next weight: the table is there twice.
  template <int j>
  DF_LANE_FN F Decode(const Codes& codes) {
    const __m512i at = codes.from[j % 4];
    if constexpr (j < 4) {
      const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                          -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
      return _mm512_permutexvar_ps(at, table);
    }
    const __m512i table = _mm512_broadcast_i32x8(
        _mm256_set_epi32(static_cast<int32_t>(0xc0c0c080), static_cast<int32_t>(0xc040c000),
                         static_cast<int32_t>(0xbfc0bf80), static_cast<int32_t>(0xbf008000),
                         0x40c04080, 0x40404000, 0x3fc03f80, 0x3f000000));
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, at, table));
  }
  // The scales of a group: byte i / 4 for lane i. The byte goes to the top of its lane; one shift
  // makes it the exponent; 2^-127 (byte 0) is the subnormal 0x00400000.
  DF_LANE_FN F Scales(const uint8_t* p, int /*plane*/) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    const __m512i spread =
        _mm512_set_epi32(0x03808080, 0x03808080, 0x03808080, 0x03808080, 0x02808080, 0x02808080,
                         0x02808080, 0x02808080, 0x01808080, 0x01808080, 0x01808080, 0x01808080,
                         0x00808080, 0x00808080, 0x00808080, 0x00808080);
    const __m512i top = _mm512_shuffle_epi8(_mm512_set1_epi32(four), spread);
    return _mm512_castsi512_ps(
        _mm512_max_epu32(_mm512_srli_epi32(top, 1), _mm512_set1_epi32(0x00400000)));
  }

  // The scales of four groups of a row, 16 of them: lanes 4 b .. 4 b + 3 have those of block b of
  // each group. And those of one of the groups.
  static constexpr int kGroupsOfScales = 4;
  DF_LANE_FN F LoadScales4(const uint8_t* p) {
    const __m128i blocks =
        _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)),
                         _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(_mm512_cvtepu8_epi32(blocks), 23),
                                                _mm512_set1_epi32(0x00400000)));
  }
  template <int group>
  DF_LANE_FN F ScalesOfGroup(F four) {
    return _mm512_permute_ps(four, group * 0x55);
  }

  // out[i] = Sum16 of the 16 lanes at acc + 16 i, for i = 0 .. 15.
  DF_LANE_FN void Sum16Block(float* out, const float* acc) {
    __m512 t[8];  // the t[0..7] of two sums each
    __m512 u[4];  // the u[0..3] of four sums each
    __m512 v[2];
    // Slot q + 4 r holds sum 4 q + r, so that the sums come out in order.
    for (int pair = 0; pair < 8; ++pair) {
      const int slot = 2 * pair;
      const __m512 a = Load(acc + 16 * (4 * (slot % 4) + slot / 4));
      const __m512 b = Load(acc + 16 * (4 * ((slot + 1) % 4) + (slot + 1) / 4));
      t[pair] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    for (int i = 0; i < 4; ++i) {
      const __m512 a = t[2 * i];
      const __m512 b = t[2 * i + 1];
      u[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    for (int i = 0; i < 2; ++i) {
      const __m512 a = u[2 * i];
      const __m512 b = u[2 * i + 1];
      v[i] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    }
    Store(out,
          _mm512_add_ps(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd)));
  }
  DF_LANE_FN float Sum16(const F* planes) {
    const __m256 lo = _mm512_castps512_ps256(planes[0]);
    const __m256 hi = _mm512_extractf32x8_ps(planes[0], 1);
    const __m256 t = _mm256_add_ps(lo, hi);
    const __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    const __m128 v = _mm_add_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
  }

 private:
  DF_LANE_FN F Pow2(__m512i n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
};

}  // namespace deltafin
