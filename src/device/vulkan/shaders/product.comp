// y = W x for `n` positions, in the order of docs/numerics.md: 16 threads are the 16 lanes of a
// row. Weights lie as lane_layout.h says: in a block of a row each lane has 16 bytes, the steps of
// that lane one after the other.
//   FORMAT     0 f32, 1 bf16, 2 int8, 3 MXFP4
//   POSITIONS  that a workgroup computes at a time
//   ROWS       of a lane set, which share the activations that it reads
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"

const uint kLanes = 16;
const uint kSets = 8;
layout(local_size_x = 128) in;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Floats { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { vec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Results {
  float at[];
};
#if FORMAT == 3
#define Inputs Quads
#else
#define Inputs Floats
#endif
layout(push_constant, std430) uniform Job {
  Words weights;
  Floats scales;  // int8: of each row
  Inputs x;       // [n, cols]
  Results y;      // [n, rows]
  uint rows;
  uint cols;
  uint n;
};

shared float partial[kSets * ROWS * POSITIONS][kLanes + 1];  // + 1: other banks

#if FORMAT == 0
const uint kSteps = 4;
float Weight(uvec4 words, uint step) { return uintBitsToFloat(words[step]); }
#elif FORMAT == 1
const uint kSteps = 8;
float Weight(uvec4 words, uint step) {
  uint word = words[step >> 1];
  return uintBitsToFloat((step & 1u) == 0u ? word << 16 : word & 0xffff0000u);
}
#elif FORMAT == 2
const uint kSteps = 16;
// 2^23 + 128 + the integer, less the rest: exact, and several times as fast as a conversion.
float Weight(uvec4 words, uint step) {
  uint byte = (words[step >> 2] ^ 0x80808080u) >> (8 * (step & 3u)) & 255u;
  precise float value = uintBitsToFloat(byte | 0x4b000000u) - 8388736.0;
  return value;
}
#else
const uint kSteps = 4;  // groups of 128 columns
shared float codes[16];
#endif

float sums[ROWS][POSITIONS];

#if FORMAT == 3
float Scale(uint byte) { return uintBitsToFloat(byte == 0u ? 1u << 22 : byte << 23); }

// Four groups, or those of them that there are.
void AddBlock(uint block, uint lane, uint first_word[ROWS], uint x_row[POSITIONS]) {
  uvec4 words[ROWS];
  uvec4 scale_words[ROWS];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    words[r] = weights.at[first_word[r] + block * 17 + lane];
    scale_words[r] = weights.at[first_word[r] + block * 17 + 16];
  }
  uint groups = (cols + 127) / 128;
  [[unroll]] for (uint step = 0; step < kSteps; ++step) {
    uint group = block * kSteps + step;
    if (group >= groups) break;
    uint k = group * 128 + lane * 8;
    vec4 low[POSITIONS];
    vec4 high[POSITIONS];
    [[unroll]] for (uint p = 0; p < POSITIONS; ++p) {
      low[p] = k < cols ? x.at[x_row[p] + k / 4] : vec4(0.0);
      high[p] = k < cols ? x.at[x_row[p] + k / 4 + 1] : vec4(0.0);
    }
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
      uint word = words[r][step];
      float c[8];
      [[unroll]] for (uint j = 0; j < 8; ++j) c[j] = codes[word >> (4 * j) & 15u];
      float scale = Scale(scale_words[r][step] >> (8 * (lane >> 2)) & 255u);
      [[unroll]] for (uint p = 0; p < POSITIONS; ++p) {
        precise float product = c[0] * low[p].x;
        product = Fma(c[1], low[p].y, product);
        product = Fma(c[2], low[p].z, product);
        product = Fma(c[3], low[p].w, product);
        product = Fma(c[4], high[p].x, product);
        product = Fma(c[5], high[p].y, product);
        product = Fma(c[6], high[p].z, product);
        product = Fma(c[7], high[p].w, product);
        sums[r][p] = Fma(product, scale, sums[r][p]);
      }
    }
  }
}
#else
void AddSteps(uint block, uint lane, uint first_word[ROWS], uint x_row[POSITIONS]) {
  uvec4 words[ROWS];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    words[r] = weights.at[first_word[r] + block * kLanes + lane];
  }
  [[unroll]] for (uint step = 0; step < kSteps; ++step) {
    uint k = (block * kSteps + step) * kLanes + lane;
    [[unroll]] for (uint p = 0; p < POSITIONS; ++p) {
      float value = x.at[x_row[p] + k];
      [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        sums[r][p] = Fma(Weight(words[r], step), value, sums[r][p]);
      }
    }
  }
}

// The last block of a row whose columns do not fill it: the steps end with the row, and only the
// rest of the last one is padding.
void AddRest(uint block, uint lane, uint first_word[ROWS], uint x_row[POSITIONS]) {
  uint steps = (cols + kLanes - 1) / kLanes;
  for (uint step = 0; step < kSteps && block * kSteps + step < steps; ++step) {
    uint k = (block * kSteps + step) * kLanes + lane;
    for (uint p = 0; p < POSITIONS; ++p) {
      float value = k < cols ? x.at[x_row[p] + k] : 0.0;
      for (uint r = 0; r < ROWS; ++r) {
        uvec4 words = weights.at[first_word[r] + block * kLanes + lane];
        sums[r][p] = Fma(Weight(words, step), value, sums[r][p]);
      }
    }
  }
}
#endif

void main() {
  uint lane = gl_LocalInvocationID.x % kLanes;
  uint set = gl_LocalInvocationID.x / kLanes;
  uint first_row = gl_WorkGroupID.x * kSets * ROWS;
  uint first_position = gl_WorkGroupID.y * POSITIONS;

#if FORMAT == 3
  if (gl_LocalInvocationID.x < 16) {
    uint magnitude = gl_LocalInvocationID.x & 7u;
    uint bits = magnitude < 2 ? magnitude * 0x3f000000u : 0x3f000000u + (magnitude << 22);
    codes[gl_LocalInvocationID.x] = uintBitsToFloat(bits | (gl_LocalInvocationID.x & 8u) << 28);
  }
  barrier();
  const uint kBlockWords = 17;
  const uint kColumn = 4;
#else
  const uint kBlockWords = 16;
  const uint kColumn = 1;
#endif
  uint block_columns = FORMAT == 3 ? 512 : kSteps * kLanes;
  uint blocks = (cols + block_columns - 1) / block_columns;

  uint first_word[ROWS];
  uint x_row[POSITIONS];
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    first_word[r] = min(first_row + r * kSets + set, rows - 1) * blocks * kBlockWords;
  }
  [[unroll]] for (uint p = 0; p < POSITIONS; ++p) {
    x_row[p] = min(first_position + p, n - 1) * (cols / kColumn);
  }
  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    [[unroll]] for (uint p = 0; p < POSITIONS; ++p) sums[r][p] = 0.0;
  }

#if FORMAT == 3
  for (uint block = 0; block < blocks; ++block) AddBlock(block, lane, first_word, x_row);
#else
  uint full = cols / block_columns;
  for (uint block = 0; block < full; ++block) AddSteps(block, lane, first_word, x_row);
  if (full < blocks) AddRest(full, lane, first_word, x_row);
#endif

  [[unroll]] for (uint r = 0; r < ROWS; ++r) {
    [[unroll]] for (uint p = 0; p < POSITIONS; ++p) {
      partial[(r * kSets + set) * POSITIONS + p][lane] = sums[r][p];
    }
  }
  barrier();
  for (uint i = gl_LocalInvocationID.x; i < kSets * ROWS * POSITIONS; i += 128) {
    uint row = first_row + i / POSITIONS;
    uint position = first_position + i % POSITIONS;
    precise float a[8];
    [[unroll]] for (uint j = 0; j < 8; ++j) a[j] = partial[i][j] + partial[i][j + 8];
    [[unroll]] for (uint j = 0; j < 4; ++j) a[j] = a[j] + a[j + 4];
    precise float first = a[0] + a[2];
    precise float second = a[1] + a[3];
    precise float result = first + second;
    if (row < rows && position < n) {
#if FORMAT == 2
      result = result * scales.at[row];
#endif
      y.at[position * rows + row] = result;
    }
  }
}
