// Pairs of floats, rounded to bf16 to nearest even.
#version 460
#extension GL_EXT_buffer_reference : require

layout(local_size_x = 128) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(push_constant, std430) uniform Job {
  Words to;
  Words from;
  uint pairs;
};

uint Rounded(uint bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;  // not a number
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

void main() {
  for (uint i = gl_GlobalInvocationID.x; i < pairs; i += gl_NumWorkGroups.x * 128) {
    to.at[i] = Rounded(from.at[2 * i]) | Rounded(from.at[2 * i + 1]) << 16;
  }
}
