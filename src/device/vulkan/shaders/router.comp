// Picks the experts of a position, a workgroup each: ids, then weights (docs/numerics.md).
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "exact.glsl"
#include "doubt.glsl"

const uint kThreads = 256;
const uint kMostExperts = 1024;
const uint kMostPicks = 64;
const uint kEach = 4;  // neighbouring experts of a thread
layout(local_size_x = 256) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { uint at[]; };
layout(push_constant, std430) uniform Job {
  Floats logits;  // [positions, num_experts]
  Floats bias;
  Floats ids;  // [positions, top_k]
  Floats weights;
  uint num_experts;
  uint top_k;
  uint renormalize;
  uint scaling_factor;  // bits of a float
};

shared uint score[kMostExperts];
shared uvec4 keys[kThreads];  // in the order of the biased scores; 0 for no expert
shared uint picks[kMostPicks];
shared double sum;

// Larger for larger floats; never 0 (but for a NaN that no expert has).
uint KeyOf(uint bits) { return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u; }

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint position = gl_WorkGroupID.x;
  uvec4 mine = uvec4(0u);
  [[dont_unroll]] for (uint j = 0; j < kEach; ++j) {
    uint e = thread * kEach + j;
    if (e < num_experts) {
      double s = FastSigmoid(FromBits(logits.at[position * num_experts + e]));
      score[e] = ToBits(s);
      mine[j] = KeyOf(ToBits(Add(s, FromBits(bias.at[e]))));
    }
  }
  keys[thread] = mine;
  barrier();
  // An expert's place is the number of those that are better, and of its equals before it.
  uint place[kEach];
  [[unroll]] for (uint j = 0; j < kEach; ++j) place[j] = 0u;
  for (uint first = 0; first < num_experts; first += kEach) {
    uvec4 others = keys[first / kEach];
    [[unroll]] for (uint j = 0; j < kEach; ++j) {
      uint e = thread * kEach + j;
      [[unroll]] for (uint i = 0; i < kEach; ++i) {
        bool is_better = others[i] > mine[j] || (others[i] == mine[j] && first + i < e);
        place[j] += is_better ? 1u : 0u;
      }
    }
  }
  [[unroll]] for (uint j = 0; j < kEach; ++j) {
    uint e = thread * kEach + j;
    if (e < num_experts && place[j] < top_k) picks[place[j]] = e;
  }
  barrier();
  if (thread == 0) {
    double all = 0.0lf;
    [[dont_unroll]] for (uint i = 0; i < top_k; ++i) all = Add(all, FromBits(score[picks[i]]));
    sum = Add(all, FromBits(0x1e3ce508u));  // 1e-20
  }
  barrier();
  for (uint i = thread; i < top_k; i += kThreads) {
    double weight = FromBits(score[picks[i]]);
    if (renormalize != 0u && top_k > 1u) weight = Div(weight, sum);
    weights.at[position * top_k + i] = ToBits(Mul(weight, FromBits(scaling_factor)));
    ids.at[position * top_k + i] = picks[i];
  }
}
