// One NEON register as seen by the kernels: 4 of the 16 lanes of docs/numerics.md, so four
// "planes". Included only by kernels_neon.cc.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#include "device/cpu/kernels.h"

namespace deltafin {

struct NeonLanes {
  using F = float32x4_t;
  static constexpr int kWidth = 4;
  static constexpr int kAccumulators = 4;
  // Rows are too short for the processor's own prefetching to get up to speed: each asks for the
  // one that comes this many rows later. Past the end of the weight that is a hint without effect.
  static constexpr int64_t kAheadRows = 8;
  static constexpr bool kAsksInOrder = false;  // at one position, too
  static constexpr int kStreamPositions = 8;   // from here on a panel of widened weights is faster
  static constexpr int kTilePositions = 6;
  static constexpr int64_t kPanelCols = 512;
  static constexpr bool kAsksBetweenQuads = true;
  static constexpr int kOuterVectors = 4;
  static constexpr int kStateVectors = 8;
  static constexpr double kFmaNs = 0.03;

  DF_LANE_FN F Zero() { return vdupq_n_f32(0.0f); }
  DF_LANE_FN F Set1(float v) { return vdupq_n_f32(v); }
  DF_LANE_FN F Load(const float* p) { return vld1q_f32(p); }
  DF_LANE_FN void Store(float* p, F v) { vst1q_f32(p, v); }
  // The first n lanes, 0 < n < kWidth; the others are +0, nothing past them is touched.
  DF_LANE_FN F LoadPartial(const float* p, int64_t n) {
    F v = vsetq_lane_f32(p[0], Zero(), 0);
    if (n > 1) v = vsetq_lane_f32(p[1], v, 1);
    if (n > 2) v = vsetq_lane_f32(p[2], v, 2);
    return v;
  }
  DF_LANE_FN void StorePartial(float* p, F v, int64_t n) {
    p[0] = vgetq_lane_f32(v, 0);
    if (n > 1) p[1] = vgetq_lane_f32(v, 1);
    if (n > 2) p[2] = vgetq_lane_f32(v, 2);
  }

  // out[w] lane c = p[4 c + w], w = 0 .. 3: reads 4 * kWidth floats.
  DF_LANE_FN void LoadColumns4(const float* p, F* out) {
    const float32x4x4_t columns = vld4q_f32(p);
    for (int w = 0; w < 4; ++w) out[w] = columns.val[w];
  }

  DF_LANE_FN F Add(F a, F b) { return vaddq_f32(a, b); }
  DF_LANE_FN F Sub(F a, F b) { return vsubq_f32(a, b); }
  DF_LANE_FN F Mul(F a, F b) { return vmulq_f32(a, b); }
  DF_LANE_FN F Div(F a, F b) { return vdivq_f32(a, b); }
  DF_LANE_FN F Fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  DF_LANE_FN F Max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // a > b ? a : b
  DF_LANE_FN F Min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }  // a < b ? a : b
  DF_LANE_FN F Abs(F a) { return vabsq_f32(a); }
  DF_LANE_FN F Negate(F a) { return vnegq_f32(a); }
  // |magnitude| is not taken: its sign must be positive.
  DF_LANE_FN F WithSignOf(F magnitude, F sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
  }
  DF_LANE_FN F SelectLess(F a, F b, F then, F otherwise) {
    return vbslq_f32(vcltq_f32(a, b), then, otherwise);
  }
  // (y * 2^h) * 2^(n - h), h = floor(n / 2), n an integer.
  DF_LANE_FN F TimesPow2(F y, F n) {
    const int32x4_t i = vcvtq_s32_f32(n);
    const int32x4_t h = vshrq_n_s32(i, 1);
    return vmulq_f32(vmulq_f32(y, Pow2(h)), Pow2(vsubq_s32(i, h)));
  }

  DF_LANE_FN F LoadBf16(const uint8_t* p) {
    const uint16x4_t h = vreinterpret_u16_u8(vld1_u8(p));
    return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
  }
  DF_LANE_FN F LoadInt8(const uint8_t* p) {
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    const int8x8_t b = vreinterpret_s8_u32(vdup_n_u32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(b))));
  }
  // To nearest even; v is not NaN.
  DF_LANE_FN void StoreBf16(uint16_t* p, F v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    vst1_u16(p, vshrn_n_u32(up, 16));
  }

  // The packed E2M1 codes of kWidth lanes, eight a lane, looked up as bf16, two in each 32-bit
  // lane.
  struct Codes {
    uint8x16_t pair[4];  // weights (0, 2), (4, 6), (1, 3), (5, 7) as (low, high) half
  };
  DF_LANE_FN Codes LoadCodes(const uint8_t* p) {
    // Bytes 0, 1 of four lanes and then bytes 2, 3: the interleave below then keeps lanes in place.
    static const uint8_t kOrder[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
    // bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, low and high byte.
    static const uint8_t kLow[16] = {0, 0, 128, 192, 0, 64, 128, 192,
                                     0, 0, 128, 192, 0, 64, 128, 192};
    static const uint8_t kHigh[16] = {0,   0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                      128, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
    const uint8x16_t bytes = vqtbl1q_u8(vld1q_u8(p), vld1q_u8(kOrder));
    const uint8x16_t low = vld1q_u8(kLow);
    const uint8x16_t high = vld1q_u8(kHigh);
    const uint8x16_t even = vandq_u8(bytes, vdupq_n_u8(0x0f));
    const uint8x16_t odd = vshrq_n_u8(bytes, 4);
    const uint8x16_t even_low = vqtbl1q_u8(low, even);
    const uint8x16_t even_high = vqtbl1q_u8(high, even);
    const uint8x16_t odd_low = vqtbl1q_u8(low, odd);
    const uint8x16_t odd_high = vqtbl1q_u8(high, odd);
    return {{vzip1q_u8(even_low, even_high), vzip2q_u8(even_low, even_high),
             vzip1q_u8(odd_low, odd_high), vzip2q_u8(odd_low, odd_high)}};
  }
  // Asks for a cache line.
  DF_LANE_FN void Ask(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }
  // Weight j of each lane.
  template <int j>
  DF_LANE_FN F Decode(const Codes& codes) {
    const uint32x4_t pair = vreinterpretq_u32_u8(codes.pair[(j % 2) * 2 + j / 4]);
    if constexpr (j % 4 < 2) return vreinterpretq_f32_u32(vshlq_n_u32(pair, 16));
    return vreinterpretq_f32_u32(vandq_u32(pair, vdupq_n_u32(0xffff0000u)));
  }
  static constexpr int kGroupsOfScales = 1;  // that are taken together: 1 or 4
  // The four lanes of a plane are one block of 32 weights. Byte 0 is the subnormal 2^-127.
  DF_LANE_FN F Scales(const uint8_t* p, int plane) {
    const uint32_t byte = p[plane];
    return vreinterpretq_f32_u32(vdupq_n_u32(byte == 0 ? 0x00400000u : byte << 23));
  }

  // out[i] = Sum16 of the 16 lanes at acc + 16 i, for i = 0 .. 15.
  DF_LANE_FN void Sum16Block(float* out, const float* acc) {
    for (int quad = 0; quad < 4; ++quad, acc += 4 * 16) {
      F u[4];
      for (int i = 0; i < 4; ++i) {
        const float* a = acc + 16 * i;
        u[i] = Tree4(Load(a), Load(a + 4), Load(a + 8), Load(a + 12));
      }
      const F v0 = vaddq_f32(vcombine_f32(vget_low_f32(u[0]), vget_low_f32(u[1])),
                             vcombine_f32(vget_high_f32(u[0]), vget_high_f32(u[1])));
      const F v1 = vaddq_f32(vcombine_f32(vget_low_f32(u[2]), vget_low_f32(u[3])),
                             vcombine_f32(vget_high_f32(u[2]), vget_high_f32(u[3])));
      Store(out + 4 * quad, vpaddq_f32(v0, v1));
    }
  }
  DF_LANE_FN float Sum16(const F* planes) {
    const F u = Tree4(planes[0], planes[1], planes[2], planes[3]);
    return vpadds_f32(vadd_f32(vget_low_f32(u), vget_high_f32(u)));
  }

 private:
  DF_LANE_FN F Tree4(F a, F b, F c, F d) { return vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d)); }
  DF_LANE_FN F Pow2(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
  }
};

}  // namespace deltafin
