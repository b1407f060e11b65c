// y = W x for `n` positions, in the order of docs/numerics.md: 16 threads are the 16 lanes of a
// row. Weights and activations lie as lane_layout.h says, so that a lane reads both 16 bytes at a
// time.
//   FORMAT     0 f32, 1 bf16, 2 int8, 3 MXFP4
//   POSITIONS  that a workgroup computes at a time
//   ROWS       of a lane set, which share the activations that it reads
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"

// A software driver's compiler takes seconds for what would come of it.
#ifdef EMULATE_FMA
#define UNROLL [[dont_unroll]]
#else
#define UNROLL [[unroll]]
#endif

const uint kLanes = 16;
const uint kSets = 8;
layout(local_size_x = 128) in;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Floats { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { vec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Results {
  float at[];
};
layout(push_constant, std430) uniform Job {
  Words weights;
  Floats scales;  // int8: of each row
  Quads x;        // [n] rows, laid out
  Results y;      // [n, rows]
  uint rows;
  uint cols;
  uint n;
};

shared float partial[kSets * ROWS * POSITIONS][kLanes + 1];  // + 1: other banks
float sums[ROWS][POSITIONS];

#if FORMAT == 0
const uint kColumns = 64;  // of a block
const uint kSteps = 4;     // of a lane in it
float Weight(uvec4 words, uint step) { return uintBitsToFloat(words[step]); }
#elif FORMAT == 1
const uint kColumns = 128;
const uint kSteps = 8;
float Weight(uvec4 words, uint step) {
  uint word = words[step >> 1];
  return uintBitsToFloat((step & 1u) == 0u ? word << 16 : word & 0xffff0000u);
}
#elif FORMAT == 2
const uint kColumns = 256;
const uint kSteps = 16;
// 2^23 + 128 + the integer, less the rest: exact, and several times as fast as a conversion.
float Weight(uvec4 words, uint step) {
  uint byte = (words[step >> 2] ^ 0x80808080u) >> (8 * (step & 3u)) & 255u;
  precise float value = uintBitsToFloat(byte | 0x4b000000u) - 8388736.0;
  return value;
}
#else
const uint kColumns = 512;
const uint kSteps = 4;  // groups of 128 columns
shared float codes[16];
#endif

#if FORMAT == 3
float Scale(uint byte) { return uintBitsToFloat(byte == 0u ? 1u << 22 : byte << 23); }

// The first `steps` groups of a block.
void AddBlock(uint block, uint steps, uint lane, uint first_word[ROWS], uint x_row[POSITIONS]) {
  uvec4 words[ROWS];
  uvec4 scale_words[ROWS];
  UNROLL for (uint r = 0; r < ROWS; ++r) {
    words[r] = weights.at[first_word[r] + block * 17 + lane];
    scale_words[r] = weights.at[first_word[r] + block * 17 + 16];
  }
  UNROLL for (uint step = 0; step < kSteps; ++step) {
    if (step >= steps) break;
    uint quad = (block * kSteps + step) * 32 + lane * 2;
    float c[ROWS][8];
    float scale[ROWS];
    UNROLL for (uint r = 0; r < ROWS; ++r) {
      uint word = words[r][step];
      UNROLL for (uint j = 0; j < 8; ++j) c[r][j] = codes[word >> (4 * j) & 15u];
      scale[r] = Scale(scale_words[r][step] >> (8 * (lane >> 2)) & 255u);
    }
    UNROLL for (uint p = 0; p < POSITIONS; ++p) {
      vec4 low = x.at[x_row[p] + quad];
      vec4 high = x.at[x_row[p] + quad + 1];
      UNROLL for (uint r = 0; r < ROWS; ++r) {
        precise float product = c[r][0] * low.x;
        product = Fma(c[r][1], low.y, product);
        product = Fma(c[r][2], low.z, product);
        product = Fma(c[r][3], low.w, product);
        product = Fma(c[r][4], high.x, product);
        product = Fma(c[r][5], high.y, product);
        product = Fma(c[r][6], high.z, product);
        product = Fma(c[r][7], high.w, product);
        sums[r][p] = Fma(product, scale[r], sums[r][p]);
      }
    }
  }
}
#else
// The first `steps` steps of a block.
void AddBlock(uint block, uint steps, uint lane, uint first_word[ROWS], uint x_row[POSITIONS]) {
  uvec4 words[ROWS];
  UNROLL for (uint r = 0; r < ROWS; ++r) {
    words[r] = weights.at[first_word[r] + block * kLanes + lane];
  }
  UNROLL for (uint first = 0; first < kSteps; first += 4) {
    if (first >= steps) break;
    // Four steps of the lane: activations come in blocks of 128 columns, eight steps to a lane.
    uint step = block * kSteps + first;
    uint quad = step / 8 * 32 + lane * 2 + step / 4 % 2;
    float w[ROWS][4];
    UNROLL for (uint r = 0; r < ROWS; ++r) {
      UNROLL for (uint j = 0; j < 4; ++j) w[r][j] = Weight(words[r], first + j);
    }
    UNROLL for (uint p = 0; p < POSITIONS; ++p) {
      vec4 value = x.at[x_row[p] + quad];
      UNROLL for (uint j = 0; j < 4; ++j) {
        if (first + j >= steps) break;
        UNROLL for (uint r = 0; r < ROWS; ++r) {
          sums[r][p] = Fma(w[r][j], value[j], sums[r][p]);
        }
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
  uint all_steps = (cols + 127) / 128;
#else
  const uint kBlockWords = 16;
  uint all_steps = (cols + kLanes - 1) / kLanes;
#endif
  uint blocks = (cols + kColumns - 1) / kColumns;
  uint x_quads = (cols + 127) / 128 * 32;

  uint first_word[ROWS];
  uint x_row[POSITIONS];
  UNROLL for (uint r = 0; r < ROWS; ++r) {
    first_word[r] = min(first_row + r * kSets + set, rows - 1) * blocks * kBlockWords;
  }
  UNROLL for (uint p = 0; p < POSITIONS; ++p) {
    x_row[p] = min(first_position + p, n - 1) * x_quads;
  }
  UNROLL for (uint r = 0; r < ROWS; ++r) {
    UNROLL for (uint p = 0; p < POSITIONS; ++p) sums[r][p] = 0.0;
  }

  // A last block whose columns do not fill it has fewer steps; within a step, zeros fill up.
  uint full = all_steps / kSteps;
  for (uint block = 0; block < full; ++block) AddBlock(block, kSteps, lane, first_word, x_row);
  if (full < blocks) AddBlock(full, all_steps - full * kSteps, lane, first_word, x_row);

  UNROLL for (uint r = 0; r < ROWS; ++r) {
    UNROLL for (uint p = 0; p < POSITIONS; ++p) {
      partial[(r * kSets + set) * POSITIONS + p][lane] = sums[r][p];
    }
  }
  barrier();
  for (uint i = gl_LocalInvocationID.x; i < kSets * ROWS * POSITIONS; i += 128) {
    uint row = first_row + i / POSITIONS;
    uint position = first_position + i % POSITIONS;
    precise float a[8];
    UNROLL for (uint j = 0; j < 8; ++j) a[j] = partial[i][j] + partial[i][j + 8];
    UNROLL for (uint j = 0; j < 4; ++j) a[j] = a[j] + a[j + 4];
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
