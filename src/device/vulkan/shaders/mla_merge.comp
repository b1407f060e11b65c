// Merges what mla_attend.comp left, in order: `group` spans of a head and a position, a workgroup
// each. Leaves the same of a span that is as long as all of them, or where that is all, the result.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"

const uint kThreads = 128;
const uint kMostColumns = 4;  // of a thread
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

shared double most[kThreads];  // of the spans up to this one
shared double factors[kThreads][2];
shared double sum;
shared double last_most;

// How spans [from, from + count) are merged with what came before; `begin` is the very first one.
void Weigh(uint row, uint begin, uint from, uint count, uint thread) {
  barrier();
  if (thread < count) {
    double before = last_most;
    for (uint i = from; i <= from + thread; ++i) {
      double next = FromBits(spans.at[(row + i) * (2 + kv_lora)]);
      if (i == from + thread) {
        most[thread] = i == begin || before < next ? next : before;
        [[dont_unroll]] for (uint j = 0; i > begin && j < 2; ++j) {
          factors[thread][j] = Exp(Add(j == 0 ? before : next, -most[thread]));
        }
      }
      before = i == begin || before < next ? next : before;
    }
  }
  barrier();
  if (thread != 0u) return;
  last_most = most[count - 1];
  [[dont_unroll]] for (uint i = 0; i < count; ++i) {
    double next = FromBits(spans.at[(row + from + i) * (2 + kv_lora) + 1]);
    sum = from + i == begin ? next : Fma(sum, factors[i][0], Mul(next, factors[i][1]));
  }
}

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint position = gl_WorkGroupID.z;
  uint row = position * gl_NumWorkGroups.y + gl_WorkGroupID.y;
  uint begin = gl_WorkGroupID.x * group;
  uint end = min(begin + group, (first + position) / span + 1);
  if (begin >= end) return;
  double outputs[kMostColumns];
  for (uint from = begin; from < end; from += kThreads) {
    uint count = min(kThreads, end - from);
    Weigh(row * num_spans, begin, from, count, thread);
    barrier();
    for (uint c = 0; c < kMostColumns; ++c) {
      uint column = thread + c * kThreads;
      if (column >= kv_lora) break;
      double o = outputs[c];
      [[dont_unroll]] for (uint i = 0; i < count; ++i) {
        double next = FromBits(spans.at[(row * num_spans + from + i) * (2 + kv_lora) + 2 + column]);
        o = from + i == begin ? next : Fma(o, factors[i][0], Mul(next, factors[i][1]));
      }
      outputs[c] = o;
    }
  }
  uint to = (row * num_groups + gl_WorkGroupID.x) * (2 + kv_lora);
  for (uint c = 0; c < kMostColumns; ++c) {
    uint column = thread + c * kThreads;
    if (column >= kv_lora) break;
    if (num_groups == 1u) {
      result.at[row * kv_lora + column] = ToBits(Div(outputs[c], sum));
    } else {
      merged.at[to + 2 + column] = ToBits(outputs[c]);
    }
  }
  if (num_groups == 1u || thread != 0u) return;
  merged.at[to] = ToBits(last_most);
  merged.at[to + 1] = ToBits(sum);
}
