// What this device's arithmetic gives for `count` triples: a * b + c with one rounding, a + b, and
// a * b.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"

layout(local_size_x = 64) in;

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Floats { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Results {
  float at[];
};
layout(push_constant, std430) uniform Job {
  Floats triples;
  Results results;
  uint count;
};

void main() {
  uint i = gl_GlobalInvocationID.x;
  if (i >= count) return;
  float a = triples.at[3 * i];
  float b = triples.at[3 * i + 1];
  float c = triples.at[3 * i + 2];
  precise float sum = a + b;
  precise float product = a * b;
  results.at[3 * i] = Fma(a, b, c);
  results.at[3 * i + 1] = sum;
  results.at[3 * i + 2] = product;
}
