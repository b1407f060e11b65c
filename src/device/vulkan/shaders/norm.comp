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
#include "staged.glsl"
#endif

#ifdef LAY_OUT
const uint kThreads = 256;
const uint kAhead = 7;  // loads that are under way at a time
#else
const uint kThreads = 128;
const uint kAhead = 1;
#endif
layout(local_size_x = kThreads) in;

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

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint first = gl_WorkGroupID.x * stride;
  if (thread == 0) least_exponent = least_result = 255u;
  barrier();
#ifdef LAY_OUT
  uint of_values = 255u;
  float sum = 0.0;
  uint next[kEach] = LoadPiece(x, first, dim, 0, thread);
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
  uint exponent = 255u;
  for (uint from = thread; from < dim; from += kAhead * kThreads) {
    uint values[kAhead];
    uint scales[kAhead];
    [[unroll]] for (uint j = 0; j < kAhead; ++j) {
      uint i = min(from + j * kThreads, dim - 1);
      values[j] = x.at[first + i];
#ifdef L2
      scales[j] = dim_bits;
#else
      scales[j] = weights.at[i];
#endif
    }
    [[unroll]] for (uint j = 0; j < kAhead; ++j) {
      uint i = from + j * kThreads;
      if (i >= dim) break;
      uint value = MulBits(MulBits(values[j], factor), scales[j]);
#ifdef GATED
      value = MulBits(value, SigmoidBits(gate.at[first + i]));
#endif
      y.at[first + i] = value;
#ifdef LAY_OUT
      exponent = min(exponent, Exponent(value));
      laid_out.at[gl_WorkGroupID.x * Padded(dim) + PlaceOf(i)] = value;
#endif
    }
  }
#ifdef LAY_OUT
  for (uint i = dim + thread; i < Padded(dim); i += kThreads) {
    laid_out.at[gl_WorkGroupID.x * Padded(dim) + PlaceOf(i)] = 0u;
  }
  atomicMin(least_result, exponent);
  barrier();
  if (thread == 0) quanta.at[gl_WorkGroupID.x] = uint(Quantum(least_result));
#endif
}
