// product.comp for MXFP4 that lies in host memory as it was read (in_place.glsl): the same sums in
// the same order. Activations lie as lane_layout.h says.
//   POSITIONS  that a lane set computes
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "product_job.glsl"
#include "in_place.glsl"

// A software driver's compiler takes seconds for what would come of it.
#ifdef EMULATE_FMA
#define UNROLL [[dont_unroll]]
#else
#define UNROLL [[unroll]]
#endif

const uint kLanes = 16;
const uint kSets = 8;
const uint kThreads = kSets * kLanes;
layout(local_size_x = kThreads) in;

shared float partial[kSets * POSITIONS][kLanes + 1];  // + 1: other banks

// The pair-th two codes as halves, 2^-14 of their values: the fields of a code are those of a half.
vec2 Pair(uint codes, uint pair) {
  uint two = codes >> (8 * pair);
  return unpackHalf2x16((two & 7u) << 9 | (two & 8u) << 12 | (two & 0x70u) << 21 |
                        (two & 0x80u) << 24);
}
// The least one is subnormal.
float Scale(uint byte) { return uintBitsToFloat(byte == 0u ? 0x00400000u : byte << 23); }

void main() {
  Product product = TheProduct();
  uint lane = gl_LocalInvocationID.x % kLanes;
  uint set = gl_LocalInvocationID.x / kLanes;
  uint first_row = gl_WorkGroupID.y * kSets;
  uint first_position = gl_WorkGroupID.x * POSITIONS;
  if (first_position >= product.n || first_row >= product.rows) return;

  uint row = min(first_row + set, product.rows - 1);
  uint steps = (product.cols + 127) / 128;
  uint x_row[POSITIONS];
  float sums[POSITIONS];
  UNROLL for (uint p = 0; p < POSITIONS; ++p) {
    x_row[p] = InRow(product, min(first_position + p, product.n - 1)) * steps * 32;
    sums[p] = 0.0;
  }
  for (uint step = 0; step < steps; ++step) {
    // Beyond the last column, zeros fill up.
    uint k = step * 128 + lane * 8;
    bool inside = k < product.cols;
    uint codes = inside ? CodesAt(product, row, k) : 0u;
    float scale = inside ? Scale(ScaleAt(product, row, k)) : 0.0;
    vec2 c[4];
    UNROLL for (uint j = 0; j < 4; ++j) c[j] = Pair(codes, j);
    uint quad = step * 32 + lane * 2;
    UNROLL for (uint p = 0; p < POSITIONS; ++p) {
      vec4 low = product.x.at[x_row[p] + quad];
      vec4 high = product.x.at[x_row[p] + quad + 1];
      precise float sum = c[0].x * low.x;
      sum = Fma(c[0].y, low.y, sum);
      sum = Fma(c[1].x, low.z, sum);
      sum = Fma(c[1].y, low.w, sum);
      sum = Fma(c[2].x, high.x, sum);
      sum = Fma(c[2].y, high.y, sum);
      sum = Fma(c[3].x, high.z, sum);
      sum = Fma(c[3].y, high.w, sum);
      sums[p] = Fma(sum, scale, sums[p]);
    }
  }

  UNROLL for (uint p = 0; p < POSITIONS; ++p) partial[set * POSITIONS + p][lane] = sums[p];
  barrier();
  for (uint i = gl_LocalInvocationID.x; i < kSets * POSITIONS; i += kThreads) {
    uint result_row = first_row + i / POSITIONS;
    uint p = first_position + i % POSITIONS;
    if (result_row >= product.rows || p >= product.n) continue;
    if (int(product.quanta.at[InRow(product, p)]) < product.least) continue;
    precise float a[8];
    UNROLL for (uint j = 0; j < 8; ++j) a[j] = partial[i][j] + partial[i][j + 8];
    UNROLL for (uint j = 0; j < 4; ++j) a[j] = a[j] + a[j + 4];
    precise float first = a[0] + a[2];
    precise float second = a[1] + a[3];
    precise float result = first + second;
    product.y.at[OutRow(product, p) * product.y_stride + result_row] = floatBitsToUint(result);
  }
}
