// y = RMS(x; w, eps) of rows, a workgroup each; GATED: times sigmoid(gate). L2: the sum of squares
// takes the place of their mean, and `dim_bits` (a scale) that of the weights.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"

const uint kThreads = 128;
layout(local_size_x = 128) in;

layout(push_constant, std430) uniform Job {
  Floats y;
  Floats x;
  Floats weights;
  Floats gate;
  uint dim;
  uint stride;
  uint dim_bits;  // bits of floats
  uint eps;
  int least;  // exponent of a product that is not subnormal
};

shared uint least_exponent;
shared double sums[kLanes];
shared double factor;

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint first = gl_WorkGroupID.x * stride;
  if (thread == 0) least_exponent = 255u;
  barrier();
  uint exponent = 255u;
  for (uint i = thread; i < dim; i += kThreads) exponent = min(exponent, Exponent(x.at[first + i]));
  atomicMin(least_exponent, exponent);
  barrier();
  if (thread < kLanes) {
    if (2 * Quantum(least_exponent) >= least) {
      sums[thread] = FromBits(floatBitsToUint(LaneSum(x, first, x, first, dim, thread)));
    } else {
      sums[thread] = ExactLaneSum(x, first, x, first, dim, thread);
    }
  }
  barrier();
  if (thread == 0) {
    [[dont_unroll]] for (uint width = kLanes / 2; width > 0; width /= 2) {
      for (uint i = 0; i < width; ++i) sums[i] = Add(sums[i], sums[i + width]);
    }
#ifdef L2
    double mean = sums[0];
#else
    double mean = Div(sums[0], FromBits(dim_bits));
#endif
    factor = Div(1.0lf, Sqrt(Add(mean, FromBits(eps))));
  }
  barrier();
  for (uint i = thread; i < dim; i += kThreads) {
#ifdef L2
    uint weight = dim_bits;
#else
    uint weight = weights.at[i];
#endif
    double value = Mul(Mul(FromBits(x.at[first + i]), factor), FromBits(weight));
#ifdef GATED
    value = Mul(value, Sigmoid(FromBits(gate.at[first + i])));
#endif
    y.at[first + i] = ToBits(value);
  }
}
