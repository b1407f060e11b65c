// Queries in the space of the latent cache, a workgroup for each head and position: column j is
// fma(q[i], Wk[i, j], ...) over i in order; the rest of the query is copied.
//   FORMAT  of the weights
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"
#include "weights.glsl"

#ifdef EMULATE_FMA
#define UNROLL [[dont_unroll]]
#else
#define UNROLL [[unroll]]
#endif

const uint kThreads = 64;
const uint kMostNope = 256;
layout(local_size_x = 64) in;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words { uvec4 at[]; };
layout(push_constant, std430) uniform Job {
  Floats result;  // [positions, heads, kv_lora + rope]
  Floats queries;  // [positions, heads, nope + rope]
  Words weights;
  Floats scales;  // int8: of each row
  uint heads;
  uint nope;
  uint rope;
  uint values;  // rows of a head that follow its keys
  uint kv_lora;
  int least;  // the quantum of queries from which on the device's own operations are right
};

shared uint query[kMostNope];
shared uint least_exponent;

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint head = gl_WorkGroupID.x;
  uint row = gl_WorkGroupID.y * heads + head;
  uint first_row = head * (nope + values);
  uint from = row * (nope + rope);
  uint to = row * (kv_lora + rope);
  if (thread == 0) least_exponent = 255u;
  barrier();
  uint exponent = 255u;
  for (uint i = thread; i < nope; i += kThreads) {
    uint bits = queries.at[from + i];
#if FORMAT == 2
    bits = ToBits(Mul(FromBits(bits), FromBits(scales.at[first_row + i])));
#endif
    query[i] = bits;
    exponent = min(exponent, Exponent(bits));
  }
  atomicMin(least_exponent, exponent);
  barrier();
  bool is_safe = Quantum(least_exponent) >= least;
  uint units = (kv_lora + kColumns - 1) / kColumns * kLanes;
  for (uint unit = thread; unit < units; unit += kThreads) {
    uint sums[kSteps];
    if (is_safe) {
      float sum[kSteps];
      UNROLL for (uint step = 0; step < kSteps; ++step) sum[step] = 0.0;
      for (uint i = 0; i < nope; ++i) {
        uvec4 words = weights.at[(first_row + i) * units + unit];
        float q = uintBitsToFloat(query[i]);
        UNROLL for (uint step = 0; step < kSteps; ++step) {
          sum[step] = Fma(q, Weight(words, step), sum[step]);
        }
      }
      UNROLL for (uint step = 0; step < kSteps; ++step) sums[step] = floatBitsToUint(sum[step]);
    } else {
      [[dont_unroll]] for (uint step = 0; step < kSteps; ++step) {
        double sum = 0.0lf;
        [[dont_unroll]] for (uint i = 0; i < nope; ++i) {
          float weight = Weight(weights.at[(first_row + i) * units + unit], step);
          sum = Fma(FromBits(query[i]), FromBits(floatBitsToUint(weight)), sum);
        }
        sums[step] = ToBits(sum);
      }
    }
    uint first_column = unit / kLanes * kColumns + unit % kLanes;
    UNROLL for (uint step = 0; step < kSteps; ++step) {
      uint column = first_column + step * kLanes;
      if (column < kv_lora) result.at[to + column] = sums[step];
    }
  }
  for (uint i = thread; i < rope; i += kThreads) {
    result.at[to + kv_lora + i] = queries.at[from + nope + i];
  }
}
