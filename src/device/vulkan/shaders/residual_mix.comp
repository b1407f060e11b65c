// Attention residuals: the sources of a position, weighted by their scores (residual_scores.comp); a
// thread for each column.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "exact.glsl"
#include "doubt.glsl"

const uint kMostSources = 16;
layout(local_size_x = 128) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { uint at[]; };
layout(push_constant, std430) uniform Job {
  Floats result;
  Floats scores;
  Floats snapshots;
  Floats prefix;
  uint snapshot_stride;
  uint num_snapshots;
  uint dim;
};

shared double exponentials[kMostSources];
shared uint weights[kMostSources];

uint Value(uint source, uint at) {
  if (source == num_snapshots) return prefix.at[at];
  return snapshots.at[source * snapshot_stride + at];
}

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint position = gl_WorkGroupID.y;
  uint sources = num_snapshots + 1;
  if (thread < sources) {
    double most = FromBits(scores.at[position * sources]);
    for (uint i = 1; i < sources; ++i) {
      double score = FromBits(scores.at[position * sources + i]);
      most = most < score ? score : most;
    }
    exponentials[thread] = Exp(Add(FromBits(scores.at[position * sources + thread]), -most));
  }
  barrier();
  if (thread < sources) {
    double sum = exponentials[0];
    for (uint i = 1; i < sources; ++i) sum = Add(sum, exponentials[i]);
    weights[thread] = ToBits(Div(exponentials[thread], sum));
  }
  barrier();
  uint column = gl_GlobalInvocationID.x;
  if (column >= dim) return;
  uint at = position * dim + column;
  uint sum = 0u;
  bool doubtful = false;
  for (uint s = 0; s < sources; ++s) {
    uint value = Value(s, at);
    uint next;
    if (s == 0u) {
      precise float product = uintBitsToFloat(weights[s]) * uintBitsToFloat(value);
      next = floatBitsToUint(product);
    } else {
      next = floatBitsToUint(
          Fma(uintBitsToFloat(weights[s]), uintBitsToFloat(value), uintBitsToFloat(sum)));
    }
    doubtful = doubtful || IsSubnormal(weights[s]) || IsSubnormal(value) ||
               IsDoubtful(next, weights[s], value, s == 0u ? 0u : sum);
    sum = next;
  }
  if (doubtful) {
    double exact = 0.0lf;
    [[dont_unroll]] for (uint s = 0; s < sources; ++s) {
      double weight = FromBits(weights[s]);
      double value = FromBits(Value(s, at));
      exact = s == 0u ? Mul(weight, value) : Fma(weight, value, exact);
    }
    sum = ToBits(exact);
  }
  result.at[at] = sum;
}
