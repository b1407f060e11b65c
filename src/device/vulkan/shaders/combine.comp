// out[p] = sum over j < top_k of weights[p, j] * y[p * top_k + j], j in order.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "exact.glsl"
#include "doubt.glsl"

layout(local_size_x = 128) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { uint at[]; };
layout(push_constant, std430) uniform Job {
  Floats result;
  Floats y;
  Floats weights;
  uint top_k;
  uint dim;
};

const uint kAhead = 8;  // loads that are under way at a time

uint Exact(uint position, uint i) {
  double sum = 0.0lf;
  [[dont_unroll]] for (uint j = 0; j < top_k; ++j) {
    uint row = position * top_k + j;
    double weight = FromBits(weights.at[row]);
    double value = FromBits(y.at[row * dim + i]);
    sum = j == 0 ? Mul(weight, value) : Fma(weight, value, sum);
  }
  return ToBits(sum);
}

void main() {
  uint position = gl_WorkGroupID.y;
  for (uint i = gl_GlobalInvocationID.x; i < dim; i += gl_NumWorkGroups.x * 128) {
    uint sum = 0u;
    bool doubtful = false;
    for (uint first = 0; first < top_k; first += kAhead) {
      uint values[kAhead];
      [[unroll]] for (uint j = 0; j < kAhead; ++j) {
        values[j] = y.at[(position * top_k + min(first + j, top_k - 1)) * dim + i];
      }
      [[unroll]] for (uint j = 0; j < kAhead; ++j) {
        if (first + j >= top_k) break;
        uint weight = weights.at[position * top_k + first + j];
        precise float product = uintBitsToFloat(weight) * uintBitsToFloat(values[j]);
        float added =
            Fma(uintBitsToFloat(weight), uintBitsToFloat(values[j]), uintBitsToFloat(sum));
        uint next = floatBitsToUint(first + j == 0u ? product : added);
        doubtful = doubtful || IsTiny(next) || IsSubnormal(weight) || IsSubnormal(values[j]);
        sum = next;
      }
    }
    if (doubtful) sum = Exact(position, i);
    result.at[position * dim + i] = sum;
  }
}
