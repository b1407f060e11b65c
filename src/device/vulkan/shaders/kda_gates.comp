// f = exp(lower_bound * sigmoid(exp(A_log) * (f + dt_bias))) and beta = sigmoid(beta).
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
  Floats f;     // [rows, dim], a row for each step and head
  Floats beta;  // [rows]
  Floats a_log;
  Floats dt_bias;  // [heads, dim]
  uint rows;
  uint heads;
  uint dim;
  uint lower_bound;  // bits of a float
};

void main() {
  uint count = rows * dim;
  for (uint i = gl_GlobalInvocationID.x; i < count; i += gl_NumWorkGroups.x * 128) {
    uint row = i / dim;
    uint head = row % heads;
    double z = Add(FromBits(f.at[i]), FromBits(dt_bias.at[head * dim + i % dim]));
    double value = FromBits(a_log.at[head]);
    // exp(A_log), then the exponent of the sigmoid, then the gate.
    [[dont_unroll]] for (uint step = 0; step < 3; ++step) {
      value = FastExp(value);
      if (step == 0) value = -Mul(value, z);
      if (step == 1) value = Mul(FromBits(lower_bound), Div(1.0lf, Add(1.0lf, value)));
    }
    f.at[i] = ToBits(value);
    if (i % dim == 0) beta.at[row] = ToBits(FastSigmoid(FromBits(beta.at[row])));
  }
}
