// Picks the experts of a position, a workgroup each: ids, then weights (docs/numerics.md).
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "exact.glsl"
#include "doubt.glsl"

const uint kThreads = 128;
const uint kMostExperts = 1024;
const uint kMostPicks = 64;
layout(local_size_x = 128) in;

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
shared double biased[kMostExperts];
shared uint is_picked[kMostExperts / 32];
shared double best_value[kThreads];
shared uint best[kThreads];
shared uint picks[kMostPicks];

// The first of equals is the better one.
bool IsBetter(double value, uint expert, double than_value, uint than) {
  if (expert == num_experts || than == num_experts) return expert != num_experts;
  return value > than_value || (value == than_value && expert < than);
}

void Weigh(uint position) {
  double sum = 0.0lf;
  for (uint i = 0; i < top_k; ++i) sum = Add(sum, FromBits(score[picks[i]]));
  sum = Add(sum, FromBits(0x1e3ce508u));  // 1e-20
  [[dont_unroll]] for (uint i = 0; i < top_k; ++i) {
    double weight = FromBits(score[picks[i]]);
    if (renormalize != 0u && top_k > 1u) weight = Div(weight, sum);
    weights.at[position * top_k + i] = ToBits(Mul(weight, FromBits(scaling_factor)));
    ids.at[position * top_k + i] = picks[i];
  }
}

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint position = gl_WorkGroupID.x;
  for (uint e = thread; e < num_experts; e += kThreads) {
    double s = FastSigmoid(FromBits(logits.at[position * num_experts + e]));
    score[e] = ToBits(s);
    biased[e] = Add(s, FromBits(bias.at[e]));
  }
  if (thread < kMostExperts / 32) is_picked[thread] = 0u;
  barrier();
  for (uint pick = 0; pick < top_k; ++pick) {
    uint expert = num_experts;
    double value = 0.0lf;
    for (uint e = thread; e < num_experts; e += kThreads) {
      if ((is_picked[e / 32] >> (e % 32) & 1u) != 0u) continue;
      if (!IsBetter(biased[e], e, value, expert)) continue;
      expert = e;
      value = biased[e];
    }
    best[thread] = expert;
    best_value[thread] = value;
    for (uint width = kThreads / 2; width > 0; width /= 2) {
      barrier();
      uint other = thread + width;
      if (thread < width &&
          IsBetter(best_value[other], best[other], best_value[thread], best[thread])) {
        best[thread] = best[other];
        best_value[thread] = best_value[other];
      }
    }
    if (thread == 0) {
      picks[pick] = best[0];
      is_picked[best[0] / 32] |= 1u << (best[0] % 32);
    }
    barrier();
  }
  if (thread == 0) Weigh(position);
}
