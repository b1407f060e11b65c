// y = W x for `n` positions (product_one.comp has what is faster for one), in the order of
// docs/numerics.md: 16 threads are the 16 lanes of a row. Weights and activations lie as
// lane_layout.h says, so that a lane reads both 16 bytes at a time.
//   FORMAT         0 f32, 1 bf16, 2 int8, 3 MXFP4
//   POSITIONS      that a lane set computes
//   ROWS           that it computes for each
//   ROW_SETS       lane sets of a workgroup that compute the same positions
//   POSITION_SETS  and those that compute the same rows
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "product_job.glsl"

// A software driver's compiler takes seconds for what would come of it.
#ifdef EMULATE_FMA
#define UNROLL [[dont_unroll]]
#else
#define UNROLL [[unroll]]
#endif

const uint kLanes = 16;
const uint kSets = ROW_SETS * POSITION_SETS;
const uint kThreads = kSets * kLanes;
layout(local_size_x = kThreads) in;

shared float partial[kSets * POSITIONS][kLanes + 1];  // + 1: other banks
float sums[ROWS][POSITIONS];

#if FORMAT != 3
#include "weights.glsl"
#else
const uint kColumns = 512;
const uint kSteps = 4;  // groups of 128 columns
// Two codes as halves, 2^-14 of their values: the fields of a code are those of a half, even where
// both are subnormal.
vec2 Pair(uint word, uint pair) {
  const uint kMagnitudes = 0x0e000e00u;
  const uint kSigns = 0x80008000u;
  uint halves;
  switch (pair) {
    case 0:
      halves = word & (kMagnitudes | kSigns);
      break;
    case 1:
      halves = word << 3 & (kMagnitudes | kSigns);
      break;
    case 2:
      halves = (word << 6 & kMagnitudes) | (word << 2 & kSigns);
      break;
    default:
      halves = (word << 9 & kMagnitudes) | (word << 1 & kSigns);
      break;
  }
  return unpackHalf2x16(halves);
}
// No scale of such a product is subnormal.
float Scale(uint bytes, uint step) {
  uint bits = step < 3u ? bytes << (23u - 8u * step) : bytes >> 1;
  return uintBitsToFloat(bits & 0x7f800000u);
}
#endif

// A lane's part of a block, in each row.
uvec4 words[ROWS];
uint scales[ROWS];  // of MXFP4
void LoadBlock(Product product, uint block, uint lane, uint first_word[ROWS]) {
  UNROLL for (uint r = 0; r < ROWS; ++r) {
#if FORMAT == 3
    uint word = first_word[r] + block * 17;
    scales[r] = Bits(product.weights).at[(word + 16) * 4 + (lane >> 2)];
#else
    uint word = first_word[r] + block * kLanes;
#endif
    words[r] = product.weights.at[word + lane];
  }
}

#if FORMAT == 3
// The first `steps` groups of a block.
void AddBlock(Product product, uint block, uint steps, uint lane, uint x_row[POSITIONS]) {
  UNROLL for (uint step = 0; step < kSteps; ++step) {
    if (step >= steps) break;
    uint quad = (block * kSteps + step) * 32 + lane * 2;
    vec2 c[ROWS][4];
    float scale[ROWS];
    UNROLL for (uint r = 0; r < ROWS; ++r) {
      UNROLL for (uint j = 0; j < 4; ++j) c[r][j] = Pair(words[r][step], j);
      scale[r] = Scale(scales[r], step);
    }
    UNROLL for (uint p = 0; p < POSITIONS; ++p) {
      vec4 low = product.x.at[x_row[p] + quad];
      vec4 high = product.x.at[x_row[p] + quad + 1];
      UNROLL for (uint r = 0; r < ROWS; ++r) {
        precise float sum = c[r][0].x * low.x;
        sum = Fma(c[r][0].y, low.y, sum);
        sum = Fma(c[r][1].x, low.z, sum);
        sum = Fma(c[r][1].y, low.w, sum);
        sum = Fma(c[r][2].x, high.x, sum);
        sum = Fma(c[r][2].y, high.y, sum);
        sum = Fma(c[r][3].x, high.z, sum);
        sum = Fma(c[r][3].y, high.w, sum);
        sums[r][p] = Fma(sum, scale[r], sums[r][p]);
      }
    }
  }
}
#else
// The first `steps` steps of a block.
void AddBlock(Product product, uint block, uint steps, uint lane, uint x_row[POSITIONS]) {
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
      vec4 value = product.x.at[x_row[p] + quad];
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

// Adds up the lanes of the r-th row of every set.
void Finish(Product product, uint r, uint first_row, uint first_position) {
  for (uint i = gl_LocalInvocationID.x; i < kSets * POSITIONS; i += kThreads) {
    uint set = i / POSITIONS;
    uint row = first_row + r * ROW_SETS + set % ROW_SETS;
    uint p = first_position + set / ROW_SETS * POSITIONS + i % POSITIONS;
    if (row >= product.rows || p >= product.n) continue;
    if (int(product.quanta.at[InRow(product, p)]) < product.least) continue;
    precise float a[8];
    UNROLL for (uint j = 0; j < 8; ++j) a[j] = partial[i][j] + partial[i][j + 8];
    UNROLL for (uint j = 0; j < 4; ++j) a[j] = a[j] + a[j + 4];
    precise float first = a[0] + a[2];
    precise float second = a[1] + a[3];
    precise float result = first + second;
#if FORMAT == 2
    result = result * uintBitsToFloat(product.scales.at[row]);
#endif
    product.y.at[OutRow(product, p) * product.y_stride + row] = floatBitsToUint(result);
  }
}

void main() {
  Product product = TheProduct();
  uint lane = gl_LocalInvocationID.x % kLanes;
  uint set = gl_LocalInvocationID.x / kLanes;
  // Neighbours share weights: a piece of them is read for all positions before the next one.
  uint first_row = gl_WorkGroupID.y * ROW_SETS * ROWS;
  uint first_position = gl_WorkGroupID.x * POSITION_SETS * POSITIONS;
  if (first_position >= product.n) return;

#if FORMAT == 3
  const uint kBlockWords = 17;
  uint all_steps = (product.cols + 127) / 128;
#else
  const uint kBlockWords = 16;
  uint all_steps = (product.cols + kLanes - 1) / kLanes;
#endif
  uint blocks = (product.cols + kColumns - 1) / kColumns;
  uint x_quads = (product.cols + 127) / 128 * 32;

  uint first_word[ROWS];
  uint x_row[POSITIONS];
  UNROLL for (uint r = 0; r < ROWS; ++r) {
    uint row = first_row + r * ROW_SETS + set % ROW_SETS;
    first_word[r] = min(row, product.rows - 1) * blocks * kBlockWords;
  }
  UNROLL for (uint p = 0; p < POSITIONS; ++p) {
    uint position = first_position + set / ROW_SETS * POSITIONS + p;
    x_row[p] = InRow(product, min(position, product.n - 1)) * x_quads;
  }
  UNROLL for (uint r = 0; r < ROWS; ++r) {
    UNROLL for (uint p = 0; p < POSITIONS; ++p) sums[r][p] = 0.0;
  }

  // A last block whose columns do not fill it has fewer steps; within a step, zeros fill up.
  uint full = all_steps / kSteps;
  for (uint block = 0; block < full; ++block) {
    LoadBlock(product, block, lane, first_word);
    AddBlock(product, block, kSteps, lane, x_row);
  }
  if (full < blocks) {
    LoadBlock(product, full, lane, first_word);
    AddBlock(product, full, all_steps - full * kSteps, lane, x_row);
  }

  UNROLL for (uint r = 0; r < ROWS; ++r) {
    UNROLL for (uint p = 0; p < POSITIONS; ++p) partial[set * POSITIONS + p][lane] = sums[r][p];
    barrier();
    Finish(product, r, first_row, first_position);
    barrier();
  }
}
