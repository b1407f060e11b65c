// What product.comp leaves: positions that could meet a subnormal which the device takes for zero,
// or a number that it cannot scale. In double precision, 16 threads for a row.
//   FORMAT  as there; 4 is MXFP4 as it lies in host memory (in_place.glsl)
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "product_job.glsl"

const uint kLanes = 16;
const uint kSets = 8;
layout(local_size_x = 128) in;

shared double partial[kSets][kLanes];

#if FORMAT >= 3
double Scale(uint byte) { return FromBits(byte == 0u ? 1u << 22 : byte << 23); }
#endif
#if FORMAT == 3
// Where the bits of two codes are, each in half a word.
const uint kMagnitudeAt[4] = uint[](9u, 6u, 3u, 0u);
const uint kSignAt[4] = uint[](15u, 12u, 13u, 14u);
double Code(uint word, uint j) {
  uint half_word = (j & 1u) == 0u ? word : word >> 16;
  uint magnitude = half_word >> kMagnitudeAt[j >> 1] & 7u;
  uint bits = magnitude < 2u ? magnitude * 0x3f000000u : 0x3f000000u + (magnitude << 22);
  return FromBits(bits | (half_word >> kSignAt[j >> 1] & 1u) << 31);
}
#elif FORMAT == 4
#include "in_place.glsl"
double Code(uint word, uint j) {
  uint code = word >> (4 * j);
  uint magnitude = code & 7u;
  uint bits = magnitude < 2u ? magnitude * 0x3f000000u : 0x3f000000u + (magnitude << 22);
  return FromBits(bits | (code >> 3 & 1u) << 31);
}
#endif

double LaneSum(Product product, uint row, uint x_row, uint lane) {
  double sum = 0.0lf;
  uint first_x = x_row * product.cols;
#if FORMAT >= 3
  uint first_word = row * ((product.cols + 511) / 512) * 17;
  for (uint k = lane * 8; k < product.cols; k += 128) {
#if FORMAT == 4
    uint codes = CodesAt(product, row, k);
    uint scale = ScaleAt(product, row, k);
#else
    uint word = first_word + k / 512 * 17;
    uint step = k / 128 % 4;
    uint codes = product.weights.at[word + lane][step];
    uint scale = product.weights.at[word + 16][lane >> 2] >> (8 * step) & 255u;
#endif
    double part = 0.0lf;
    [[dont_unroll]] for (uint j = 0; j < 8; ++j) {
      double value = FromBits(product.plain_x.at[first_x + k + j]);
      part = j == 0 ? Mul(Code(codes, j), value) : Fma(Code(codes, j), value, part);
    }
    sum = Fma(part, Scale(scale), sum);
  }
  if ((product.cols & 127u) != 0u && lane * 8 >= (product.cols & 127u)) sum = Add(sum, 0.0lf);
#else
#if FORMAT == 0
  const uint kSteps = 4;
#elif FORMAT == 1
  const uint kSteps = 8;
#else
  const uint kSteps = 16;
#endif
  uint first_word = row * ((product.cols + kSteps * kLanes - 1) / (kSteps * kLanes)) * kLanes;
  for (uint first = 0; first < product.cols; first += kLanes) {
    uint step = first / kLanes;
    uint k = first + lane;
    uvec4 words = product.weights.at[first_word + step / kSteps * kLanes + lane];
    uint part = step % kSteps;
#if FORMAT == 0
    double weight = FromBits(words[part]);
#elif FORMAT == 1
    uint word = words[part >> 1];
    double weight = FromBits((part & 1u) == 0u ? word << 16 : word & 0xffff0000u);
#else
    double weight = double(int(words[part >> 2] >> (8 * (part & 3u)) & 255u) - 128);
#endif
    sum = Fma(weight, k < product.cols ? FromBits(product.plain_x.at[first_x + k]) : 0.0lf, sum);
  }
#endif
  return sum;
}

void main() {
  Product product = TheProduct();
  uint lane = gl_LocalInvocationID.x % kLanes;
  uint set = gl_LocalInvocationID.x / kLanes;
  for (uint p = gl_WorkGroupID.y; p < product.n; p += gl_NumWorkGroups.y) {
    uint x_row = InRow(product, p);
    if (int(product.quanta.at[x_row]) >= product.least) continue;
    for (uint first_row = gl_WorkGroupID.x * kSets; first_row < product.rows;
         first_row += gl_NumWorkGroups.x * kSets) {
      uint row = first_row + set;
      partial[set][lane] = LaneSum(product, min(row, product.rows - 1), x_row, lane);
      [[dont_unroll]] for (uint width = kLanes / 2; width > 0; width /= 2) {
        barrier();
        if (lane < width) partial[set][lane] = Add(partial[set][lane], partial[set][lane + width]);
      }
      if (lane == 0 && row < product.rows) {
        double result = partial[set][0];
#if FORMAT == 2
        result = Mul(result, FromBits(product.scales.at[row]));
#endif
        product.y.at[OutRow(product, p) * product.y_stride + row] = ToBits(result);
      }
      barrier();
    }
  }
}
