// Operators on `count` values, in the order of docs/numerics.md.
//   OPERATOR  0 first += second, 1 first = SiTU(first, second), 2 first *= sigmoid(second)
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
  Floats first;
  Floats second;
  uint count;
  uint beta;         // bits of floats
  uint linear_beta;
};

#if OPERATOR == 1
double Situ(double gate, double up) {
  double b = FromBits(beta);
  double linear_b = FromBits(linear_beta);
  double g = Div(gate, b);
  double u = linear_beta == 0u ? up : Div(up, linear_b);
  double exponentials[3];
  [[dont_unroll]] for (uint i = 0; i < 3; ++i) {
    double argument = i == 0 ? Mul(2.0lf, Magnitude(g))
                             : i == 1 ? Mul(2.0lf, Magnitude(u)) : -gate;
    exponentials[i] = FastExp(argument);
  }
  double linear = u;
  double tanh_of_g = 0.0lf;
  [[dont_unroll]] for (uint i = 0; i < 2; ++i) {
    double value = TanhOf(i == 0 ? g : u, exponentials[i]);
    if (i == 0) tanh_of_g = value;
    if (i == 1 && linear_beta != 0u) linear = Mul(linear_b, value);
  }
  double sigmoid = Div(1.0lf, Add(1.0lf, exponentials[2]));
  return Mul(Mul(Mul(b, tanh_of_g), sigmoid), linear);
}
#endif

void main() {
  uint stride = gl_NumWorkGroups.x * 128;
  for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
    double a = FromBits(first.at[i]);
    double b = FromBits(second.at[i]);
#if OPERATOR == 0
    result.at[i] = ToBits(Add(a, b));
#elif OPERATOR == 1
    result.at[i] = ToBits(Situ(a, b));
#else
    result.at[i] = ToBits(Mul(a, FastSigmoid(b)));
#endif
  }
}
