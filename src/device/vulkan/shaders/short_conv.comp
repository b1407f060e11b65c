// Causal convolution of width 4 and SiLU: a thread computes up to `steps` steps of a channel, and where
// `updates` says so the history, which no other workgroup may then read.
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
  Floats y;
  Floats x;
  Floats weights;
  Floats history;
  uint n;
  uint channels;
  uint steps;  // of a workgroup; 0: none is computed
  uint updates;
};

// Input of step t, of which the three before the first are the history.
uint Input(int t, uint channel) {
  return t < 0 ? history.at[uint(3 + t) * channels + channel] : x.at[uint(t) * channels + channel];
}

void main() {
  uint channel = gl_GlobalInvocationID.x;
  if (channel >= channels) return;
  int first = int(gl_WorkGroupID.y * steps);
  int end = min(int(n), first + int(steps));
  [[dont_unroll]] for (int t = first; t < end; ++t) {
    double sum = 0.0lf;
    [[dont_unroll]] for (int j = 0; j < 4; ++j) {
      double weight = FromBits(weights.at[channel * 4 + uint(j)]);
      double value = FromBits(Input(t - 3 + j, channel));
      sum = j == 0 ? Mul(weight, value) : Fma(weight, value, sum);
    }
    y.at[uint(t) * channels + channel] = ToBits(Div(sum, Add(1.0lf, FastExp(-sum))));
  }
  if (updates == 0u) return;
  uint last[3];
  for (int j = 0; j < 3; ++j) last[j] = Input(int(n) - 3 + j, channel);
  for (int j = 0; j < 3; ++j) history.at[uint(j) * channels + channel] = last[j];
}
