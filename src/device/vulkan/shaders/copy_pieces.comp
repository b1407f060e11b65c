// Pieces of memory, some workgroups each; within the GPU's memory or to the host's.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require

const uint kThreads = 128;
layout(local_size_x = 128) in;

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To { uint at[]; };
struct Piece {
  From from;
  To to;
  uint words;
};
layout(push_constant, std430) uniform Job { Piece pieces[5]; };

void main() {
  Piece piece = pieces[gl_WorkGroupID.y];
  const uint kAhead = 4;  // loads that are under way at a time
  uint stride = gl_NumWorkGroups.x * kThreads;
  for (uint first = gl_GlobalInvocationID.x; first < piece.words; first += kAhead * stride) {
    uint values[kAhead];
    [[unroll]] for (uint j = 0; j < kAhead; ++j) {
      values[j] = piece.from.at[min(first + j * stride, piece.words - 1)];
    }
    [[unroll]] for (uint j = 0; j < kAhead; ++j) {
      uint i = first + j * stride;
      if (i < piece.words) piece.to.at[i] = values[j];
    }
  }
}
