// Attention of a head and a position over `span` tokens of its latent cache, a workgroup each:
// blocks of 64 tokens, merged in order. Leaves maximum, sum and output for mla_merge.comp, or where
// one span is all, the result.
//   BF16  the cache's values; else floats
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"
#include "doubt.glsl"

const uint kThreads = 128;
const uint kSets = kThreads / kLanes;
const uint kBlock = 64;
const uint kMostLatent = 640;
const uint kMostColumns = 4;  // of a thread
layout(local_size_x = 128) in;

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pages { Floats at[]; };
layout(push_constant, std430) uniform Job {
  Floats result;    // [positions, heads, kv_lora]
  Floats spans;     // [positions, heads, num_spans, 2 + kv_lora]
  Floats queries;   // [positions, heads, latent]
  Pages pages;
  uint page_tokens;
  uint first;  // token of the first position
  uint span;
  uint num_spans;
  uint kv_lora;
  uint latent;
  uint scale;  // bits of a float
  uint flushes;
};

shared uint query[kMostLatent];
shared uint partial[kBlock][kLanes + 1];
shared double scores[kBlock];
shared uint weights[kBlock];
shared double lane_sums[kLanes];
shared double most;  // of the span so far
shared double sum;
shared double old_factor;
shared double new_factor;

uint Cached(Floats page, uint token, uint i) {
  uint at = token % page_tokens * latent + i;
#ifdef BF16
  uint word = page.at[at >> 1];
  return (at & 1u) == 0u ? word << 16 : word & 0xffff0000u;
#else
  return page.at[at];
#endif
}

// A lane's sum; a latent that does not fill the lanes is filled up with zeros.
uint ScoreLane(Floats page, uint token, uint lane) {
  float a = 0.0;
  bool doubtful = false;
  for (uint i = lane; i < latent; i += kLanes) {
    uint value = Cached(page, token, i);
    float next = Fma(uintBitsToFloat(query[i]), uintBitsToFloat(value), a);
    doubtful = doubtful || IsSubnormal(query[i]) || IsSubnormal(value) ||
               IsDoubtful(floatBitsToUint(next), query[i], value, floatBitsToUint(a));
    a = next;
  }
  uint bits = floatBitsToUint(a);
  if (flushes != 0u && doubtful) {
    double exact = 0.0lf;
    [[dont_unroll]] for (uint i = lane; i < latent; i += kLanes) {
      exact = Fma(FromBits(query[i]), FromBits(Cached(page, token, i)), exact);
    }
    bits = ToBits(exact);
  }
  bool is_filled = latent % kLanes != 0u && lane >= latent % kLanes;
  return is_filled && bits == 0x80000000u ? 0u : bits;
}

uint BlockOutput(Floats page, uint begin, uint count, uint column) {
  float o = 0.0;
  bool doubtful = false;
  for (uint s = 0; s < count; ++s) {
    uint value = Cached(page, begin + s, column);
    float next = Fma(uintBitsToFloat(weights[s]), uintBitsToFloat(value), o);
    doubtful = doubtful || IsSubnormal(weights[s]) || IsSubnormal(value) ||
               IsDoubtful(floatBitsToUint(next), weights[s], value, floatBitsToUint(o));
    o = next;
  }
  if (flushes == 0u || !doubtful) return floatBitsToUint(o);
  double exact = 0.0lf;
  [[dont_unroll]] for (uint s = 0; s < count; ++s) {
    exact = Fma(FromBits(weights[s]), FromBits(Cached(page, begin + s, column)), exact);
  }
  return ToBits(exact);
}

// Scores, weights and their sum of the tokens of a block; then how it is merged.
void Weigh(Floats page, uint begin, uint count, bool is_first, uint thread) {
  for (uint s = thread / kLanes; s < count; s += kSets) {
    partial[s][thread % kLanes] = ScoreLane(page, begin + s, thread % kLanes);
  }
  barrier();
  if (thread < count) {
    double a[kLanes];
    [[dont_unroll]] for (uint i = 0; i < kLanes; ++i) {
      a[i] = FromBits(partial[thread][i]);
    }
    [[dont_unroll]] for (uint width = kLanes / 2; width > 0; width /= 2) {
      for (uint i = 0; i < width; ++i) a[i] = Add(a[i], a[i + width]);
    }
    scores[thread] = Mul(a[0], FromBits(scale));
  }
  barrier();
  double block_most = scores[0];
  for (uint s = 1; s < count; ++s) block_most = block_most < scores[s] ? scores[s] : block_most;
  if (thread < count) weights[thread] = ToBits(Exp(Add(scores[thread], -block_most)));
  barrier();
  if (thread < kLanes) {
    double lane = 0.0lf;
    for (uint s = thread; s < count; s += kLanes) lane = Add(lane, FromBits(weights[s]));
    lane_sums[thread] = lane;
  }
  barrier();
  if (thread != 0u) return;
  [[dont_unroll]] for (uint width = kLanes / 2; width > 0; width /= 2) {
    for (uint i = 0; i < width; ++i) lane_sums[i] = Add(lane_sums[i], lane_sums[i + width]);
  }
  double larger = is_first || most < block_most ? block_most : most;
  if (!is_first) {
    [[dont_unroll]] for (uint i = 0; i < 2; ++i) {
      double factor = Exp(Add(i == 0 ? most : block_most, -larger));
      if (i == 0) old_factor = factor;
      if (i == 1) new_factor = factor;
    }
  }
  sum = is_first ? lane_sums[0] : Fma(sum, old_factor, Mul(lane_sums[0], new_factor));
  most = larger;
}

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint row = gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
  uint begin = gl_WorkGroupID.x * span;
  uint end = min(begin + span, first + gl_WorkGroupID.z + 1);
  if (begin >= end) return;
  for (uint i = thread; i < latent; i += kThreads) query[i] = queries.at[row * latent + i];
  uint outputs[kMostColumns];
  for (uint b = begin; b < end; b += kBlock) {
    Floats page = pages.at[b / page_tokens];
    uint count = min(kBlock, end - b);
    barrier();
    Weigh(page, b, count, b == begin, thread);
    barrier();
    for (uint c = 0; c < kMostColumns; ++c) {
      uint column = thread + c * kThreads;
      if (column >= kv_lora) break;
      uint o = BlockOutput(page, b, count, column);
      if (b == begin) {
        outputs[c] = o;
      } else {
        outputs[c] = ToBits(
            Fma(FromBits(outputs[c]), old_factor, Mul(FromBits(o), new_factor)));
      }
    }
  }
  if (num_spans == 1u) {
    for (uint c = 0; c < kMostColumns; ++c) {
      uint column = thread + c * kThreads;
      if (column >= kv_lora) break;
      result.at[row * kv_lora + column] = ToBits(Div(FromBits(outputs[c]), sum));
    }
    return;
  }
  uint to = (row * num_spans + gl_WorkGroupID.x) * (2 + kv_lora);
  if (thread == 0u) {
    spans.at[to] = ToBits(most);
    spans.at[to + 1] = ToBits(sum);
  }
  for (uint c = 0; c < kMostColumns; ++c) {
    uint column = thread + c * kThreads;
    if (column < kv_lora) spans.at[to + 2 + column] = outputs[c];
  }
}
