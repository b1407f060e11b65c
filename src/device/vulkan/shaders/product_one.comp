// y = W x for one position, as product.comp does it. With so few operations for each weight, what
// takes the time is waiting for memory: a lane has several blocks of weights under way while it
// computes with those before them, and the workgroup keeps the activations that belong to them in
// shared memory.
//   FORMAT  0 f32, 1 bf16, 2 int8
//   ROWS    that a lane set computes
//   SETS    lane sets of a workgroup
//   BLOCKS  that are under way
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "product_job.glsl"
#include "weights.glsl"

// A software driver's compiler takes seconds for what would come of it.
#ifdef EMULATE_FMA
#define UNROLL [[dont_unroll]]
#else
#define UNROLL [[unroll]]
#endif

const uint kLanes = 16;
const uint kThreads = SETS * kLanes;
const uint kQuads = BLOCKS * kColumns / 4;  // of activations, under way together
const uint kThreadQuads = (kQuads + kThreads - 1) / kThreads;
layout(local_size_x = kThreads) in;

shared vec4 activations[2][kQuads];
shared float partial[ROWS * SETS][kLanes + 1];  // + 1: other banks
uvec4 words[BLOCKS][ROWS];
vec4 quads[kThreadQuads];
float sums[ROWS];

// Where a lane's steps [4 i, 4 i + 4) of a block are among the activations, which come in blocks of
// 128 columns, eight steps to a lane.
uint QuadAt(uint block, uint i, uint lane) {
  uint step = block * kSteps + i * 4;
  return step / 8 * 32 + lane * 2 + step / 4 % 2;
}

void Load(Product product, uint first, uint blocks, uint x_row, uint x_quads, uint lane,
          uint first_word[ROWS]) {
  UNROLL for (uint b = 0; b < BLOCKS; ++b) {
    UNROLL for (uint r = 0; r < ROWS; ++r) {
      words[b][r] = product.weights.at[first_word[r] + min(first + b, blocks - 1) * kLanes + lane];
    }
  }
  UNROLL for (uint i = 0; i < kThreadQuads; ++i) {
    uint quad = first * (kColumns / 4) + gl_LocalInvocationID.x + i * kThreads;
    quads[i] = product.x.at[x_row + min(quad, x_quads - 1)];
  }
}

void main() {
  Product product = TheProduct();
  uint thread = gl_LocalInvocationID.x;
  uint lane = thread % kLanes;
  uint set = thread / kLanes;
  uint first_row = gl_WorkGroupID.y * SETS * ROWS;
  uint all_steps = (product.cols + kLanes - 1) / kLanes;
  uint blocks = (product.cols + kColumns - 1) / kColumns;
  uint full = all_steps / kSteps;
  uint x_quads = (product.cols + 127) / 128 * 32;
  uint position = InRow(product, 0);
  uint x_row = position * x_quads;
  uint first_word[ROWS];
  UNROLL for (uint r = 0; r < ROWS; ++r) {
    first_word[r] = min(first_row + r * SETS + set, product.rows - 1) * blocks * kLanes;
    sums[r] = 0.0;
  }

  Load(product, 0, blocks, x_row, x_quads, lane, first_word);
  for (uint first = 0; first < full; first += BLOCKS) {
    uint half_of = first / BLOCKS % 2;
    UNROLL for (uint i = 0; i < kThreadQuads; ++i) {
      uint quad = thread + i * kThreads;
      if (quad < kQuads) activations[half_of][quad] = quads[i];
    }
    uvec4 current[BLOCKS][ROWS] = words;
    barrier();
    Load(product, first + BLOCKS, blocks, x_row, x_quads, lane, first_word);
    UNROLL for (uint b = 0; b < BLOCKS; ++b) {
      if (first + b >= full) break;
      UNROLL for (uint i = 0; i < kSteps / 4; ++i) {
        vec4 value = activations[half_of][QuadAt(b, i, lane)];
        UNROLL for (uint j = 0; j < 4; ++j) {
          UNROLL for (uint r = 0; r < ROWS; ++r) {
            sums[r] = Fma(Weight(current[b][r], i * 4 + j), value[j], sums[r]);
          }
        }
      }
    }
  }
  // A last block whose columns do not fill it has fewer steps; within a step, zeros fill up.
  for (uint step = full * kSteps; step < all_steps; ++step) {
    uint i = step % kSteps;
    float value = product.x.at[x_row + QuadAt(full, i / 4, lane)][i % 4];
    UNROLL for (uint r = 0; r < ROWS; ++r) {
      float weight = Weight(product.weights.at[first_word[r] + full * kLanes + lane], i);
      sums[r] = Fma(weight, value, sums[r]);
    }
  }

  UNROLL for (uint r = 0; r < ROWS; ++r) partial[r * SETS + set][lane] = sums[r];
  barrier();
  bool is_right = int(product.quanta.at[position]) >= product.least;
  for (uint i = thread; i < ROWS * SETS; i += kThreads) {
    uint row = first_row + i;
    if (row >= product.rows || !is_right) continue;
    precise float a[8];
    UNROLL for (uint j = 0; j < 8; ++j) a[j] = partial[i][j] + partial[i][j + 8];
    UNROLL for (uint j = 0; j < 4; ++j) a[j] = a[j] + a[j + 4];
    precise float first = a[0] + a[2];
    precise float second = a[1] + a[3];
    precise float result = first + second;
#if FORMAT == 2
    result = result * uintBitsToFloat(product.scales.at[row]);
#endif
    product.y.at[OutRow(product, 0) * product.y_stride + row] = floatBitsToUint(result);
  }
}
