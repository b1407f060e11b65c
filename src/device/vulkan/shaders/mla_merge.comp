// Merges what mla_attend.comp left, in order: `group` spans of a head and a position, a workgroup
// each. Leaves the same of a span that is as long as all of them, or where that is all, the result.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "exact.glsl"
#include "doubt.glsl"

const uint kThreads = 128;
const uint kMostColumns = 4;  // of a thread
const uint kAhead = 4;        // loads that are under way at a time
layout(local_size_x = 128) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { uint at[]; };
layout(push_constant, std430) uniform Job {
  Floats result;  // [positions, heads, kv_lora]
  Floats merged;  // [positions, heads, num_groups, 2 + kv_lora]
  Floats spans;   // [positions, heads, num_spans, 2 + kv_lora]
  uint first;     // token of the first position
  uint span;      // tokens
  uint num_spans;
  uint group;
  uint num_groups;
  uint kv_lora;
};

shared uint span_most[kThreads];
shared uint span_sum[kThreads];
shared uint factors[kThreads][2];
shared uint sum;
shared uint last_most;

bool IsLess(uint a, uint b) { return FromBits(a) < FromBits(b); }

// How spans [from, from + count) are merged with what came before; `is_first`: nothing did.
void Weigh(uint row, uint from, uint count, bool is_first, uint thread) {
  barrier();
  if (thread < count) {
    span_most[thread] = spans.at[(row + from + thread) * (2 + kv_lora)];
    span_sum[thread] = spans.at[(row + from + thread) * (2 + kv_lora) + 1];
  }
  barrier();
  uint so_far = 0u;
  if (thread < count) {
    bool is_start = is_first && thread == 0u;
    uint before = is_first ? span_most[0] : last_most;
    for (uint i = 0; i < thread; ++i) {
      before = IsLess(before, span_most[i]) ? span_most[i] : before;
    }
    uint next = span_most[thread];
    so_far = is_start || IsLess(before, next) ? next : before;
    factors[thread][0] = is_start ? 0u : ExpBits(AddBits(before, so_far ^ 0x80000000u));
    factors[thread][1] = is_start ? 0u : ExpBits(AddBits(next, so_far ^ 0x80000000u));
  }
  barrier();
  if (thread == count - 1) last_most = so_far;
  if (thread != 0u) return;
  [[dont_unroll]] for (uint i = 0; i < count; ++i) {
    sum = is_first && i == 0u ? span_sum[0]
                              : MergeBits(sum, factors[i][0], span_sum[i], factors[i][1]);
  }
}

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint position = gl_WorkGroupID.z;
  uint row = position * gl_NumWorkGroups.y + gl_WorkGroupID.y;
  uint begin = gl_WorkGroupID.x * group;
  uint end = min(begin + group, (first + position) / span + 1);
  if (begin >= end) return;
  uint outputs[kMostColumns];
  for (uint from = begin; from < end; from += kThreads) {
    uint count = min(kThreads, end - from);
    Weigh(row * num_spans, from, count, from == begin, thread);
    barrier();
    [[unroll]] for (uint c = 0; c < kMostColumns; ++c) {
      uint column = thread + c * kThreads;
      if (column >= kv_lora) break;
      uint o = outputs[c];
      [[dont_unroll]] for (uint i = 0; i < count; i += kAhead) {
        uint next[kAhead];
        [[unroll]] for (uint j = 0; j < kAhead; ++j) {
          uint at = row * num_spans + from + min(i + j, count - 1);
          next[j] = spans.at[at * (2 + kv_lora) + 2 + column];
        }
        [[unroll]] for (uint j = 0; j < kAhead; ++j) {
          if (i + j >= count) break;
          o = from == begin && i + j == 0u
                  ? next[j]
                  : MergeBits(o, factors[i + j][0], next[j], factors[i + j][1]);
        }
      }
      outputs[c] = o;
    }
  }
  uint to = (row * num_groups + gl_WorkGroupID.x) * (2 + kv_lora);
  [[unroll]] for (uint c = 0; c < kMostColumns; ++c) {
    uint column = thread + c * kThreads;
    if (column >= kv_lora) break;
    if (num_groups == 1u) {
      result.at[row * kv_lora + column] = ToBits(Div(FromBits(outputs[c]), FromBits(sum)));
    } else {
      merged.at[to + 2 + column] = outputs[c];
    }
  }
  if (num_groups == 1u || thread != 0u) return;
  merged.at[to] = last_most;
  merged.at[to + 1] = sum;
}
