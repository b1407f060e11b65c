// out[p] = sum over j < top_k of weights[p, j] * y[p * top_k + j], j in order.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"

layout(local_size_x = 128) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { uint at[]; };
layout(push_constant, std430) uniform Job {
  Floats result;
  Floats y;
  Floats weights;
  uint top_k;
  uint dim;
};

void main() {
  uint position = gl_WorkGroupID.y;
  for (uint i = gl_GlobalInvocationID.x; i < dim; i += gl_NumWorkGroups.x * 128) {
    double sum = 0.0lf;
    [[dont_unroll]] for (uint j = 0; j < top_k; ++j) {
      uint row = position * top_k + j;
      double weight = FromBits(weights.at[row]);
      double value = FromBits(y.at[row * dim + i]);
      sum = j == 0 ? Mul(weight, value) : Fma(weight, value, sum);
    }
    result.at[position * dim + i] = ToBits(sum);
  }
}
