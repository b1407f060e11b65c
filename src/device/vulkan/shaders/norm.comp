// y = RMS(x; w, eps) of rows, a workgroup each; GATED: times sigmoid(gate). L2: the sum of squares
// takes the place of their mean, and `dim_bits` (a scale) that of the weights. LAY_OUT: also y as
// products read it (lay_out.comp).
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"
#include "doubt.glsl"
#include "laid_out.glsl"

#ifdef LAY_OUT
#define STAGED_ROWS 1
#include "staged.glsl"
const uint kThreads = kStagers;
layout(local_size_x = 256) in;
#else
const uint kThreads = 128;
layout(local_size_x = 128) in;
#endif

layout(push_constant, std430) uniform Job {
  Floats y;
  Floats x;
  Floats weights;
  Floats gate;
  Floats laid_out;
  Floats quanta;
  uint dim;
  uint stride;
  uint dim_bits;  // bits of floats
  uint eps;
  int least;  // exponent of a product that is not subnormal
};

shared uint least_exponent;
shared uint least_result;
shared double sums[kLanes];
shared uint factor;

#ifdef LAY_OUT
// Result i of the row; returns the least exponent field so far.
uint Put(uint i, uint value, uint exponent) {
  y.at[gl_WorkGroupID.x * stride + i] = value;
  laid_out.at[gl_WorkGroupID.x * Padded(dim) + PlaceOf(i)] = value;
  return min(exponent, Exponent(value));
}
#endif

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint first = gl_WorkGroupID.x * stride;
  if (thread == 0) least_exponent = least_result = 255u;
  barrier();
#ifdef LAY_OUT
  uint of_values = 255u;
  float sum = 0.0;
  uint next[kEach] = LoadPiece(x, first, dim, 0, thread);
  uint scales[kEach] = LoadPiece(weights, 0, dim, 0, thread);  // come meanwhile
  for (uint from = 0; from < dim; from += kPiece) {
    of_values = StagePiece(next, 0, thread, of_values);
    next = LoadPiece(x, first, dim, from + kPiece, thread);
    barrier();
    if (thread < kLanes) sum = AddPieces(sum, 0, 0, dim, from, thread);
    barrier();
  }
  atomicMin(least_exponent, of_values);
#else
  atomicMin(least_exponent, LeastExponent(x, first, dim, thread, kThreads));
#endif
  barrier();
  if (thread < kLanes) {
    if (2 * Quantum(least_exponent) >= least) {
#ifndef LAY_OUT
      float sum = LaneSum(x, first, x, first, dim, thread);
#endif
      sums[thread] = FromBits(floatBitsToUint(sum));
    } else {
      sums[thread] = ExactLaneSum(x, first, x, first, dim, thread);
    }
  }
  [[dont_unroll]] for (uint width = kLanes / 2; width > 0; width /= 2) {
    barrier();
    if (thread < width) sums[thread] = Add(sums[thread], sums[thread + width]);
  }
  if (thread == 0) {
#ifdef L2
    double mean = sums[0];
#else
    double mean = Div(sums[0], FromBits(dim_bits));
#endif
    factor = ToBits(Div(1.0lf, Sqrt(Add(mean, FromBits(eps)))));
  }
  barrier();
#ifdef LAY_OUT
  uint exponent = 255u;
  for (uint from = 0; from < dim; from += kPiece) {
    uint values[kEach];
    [[unroll]] for (uint j = 0; j < kEach; ++j) values[j] = staged[j * kThreads + thread];
    if (dim > kPiece) values = LoadPiece(x, first, dim, from, thread);
    if (from > 0) scales = LoadPiece(weights, 0, dim, from, thread);
    bool doubtful = false;
    [[unroll]] for (uint j = 0; j < kEach; ++j) {
      precise float scaled = uintBitsToFloat(values[j]) * uintBitsToFloat(factor);
      precise float result = scaled * uintBitsToFloat(scales[j]);
      uint half_way = floatBitsToUint(scaled);
      uint bits = floatBitsToUint(result);
      doubtful = doubtful || IsDoubtful(half_way, values[j], factor, 0u) ||
                 IsDoubtful(bits, half_way, scales[j], 0u);
      values[j] = bits;
    }
    if (doubtful) {
      [[dont_unroll]] for (uint j = 0; j < kEach; ++j) {
        uint i = from + j * kThreads + thread;
        if (i >= dim) break;
        exponent = Put(i, MulBits(MulBits(x.at[first + i], factor), weights.at[i]), exponent);
      }
      continue;
    }
    [[unroll]] for (uint j = 0; j < kEach; ++j) {
      uint i = from + j * kThreads + thread;
      if (i < dim) exponent = Put(i, values[j], exponent);
    }
  }
  for (uint i = dim + thread; i < Padded(dim); i += kThreads) {
    laid_out.at[gl_WorkGroupID.x * Padded(dim) + PlaceOf(i)] = 0u;
  }
  atomicMin(least_result, exponent);
  barrier();
  if (thread == 0) quanta.at[gl_WorkGroupID.x] = uint(Quantum(least_result));
#else
  for (uint i = thread; i < dim; i += kThreads) {
#ifdef L2
    uint scale = dim_bits;
#else
    uint scale = weights.at[i];
#endif
    uint value = MulBits(MulBits(x.at[first + i], factor), scale);
#ifdef GATED
    value = MulBits(value, SigmoidBits(gate.at[first + i]));
#endif
    y.at[first + i] = value;
  }
#endif
}
