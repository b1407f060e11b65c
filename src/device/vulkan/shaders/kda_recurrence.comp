// The gated delta rule, step after step: a thread has a column (a value index) of a head's state.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "doubt.glsl"
#include "exact.glsl"

const uint kColumns = 32;
const uint kMostDim = 128;
const uint kSteps = 16;  // after which the state is in memory, from where a doubtful column starts
layout(local_size_x = 32) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { uint at[]; };
layout(push_constant, std430) uniform Job {
  Floats result;
  Floats state;
  Floats q;
  Floats k;
  Floats v;
  Floats alpha;
  Floats beta;
  uint n;
  uint heads;
  uint dim;
  uint flushes;
};

shared uint s[kMostDim][kColumns];
shared uint query[kMostDim];
shared uint key[kMostDim];
shared uint decay[kMostDim];
shared uint odd_inputs;  // a subnormal was among them

uint Delta(uint row, uint column, double read) {
  double value = FromBits(v.at[row * dim + column]);
  return ToBits(Mul(FromBits(beta.at[row]), Add(value, -read)));
}

// Steps [first, end) with the device's own operations; true when one may have met a subnormal.
bool Run(uint first, uint end, uint head, uint column, uint thread) {
  bool doubtful = false;
  for (uint t = first; t < end; ++t) {
    uint row = t * heads + head;
    barrier();
    for (uint i = thread; i < dim; i += kColumns) {
      query[i] = q.at[row * dim + i];
      key[i] = k.at[row * dim + i];
      decay[i] = alpha.at[row * dim + i];
      if (IsSubnormal(query[i]) || IsSubnormal(key[i]) || IsSubnormal(decay[i])) odd_inputs = 1u;
    }
    barrier();
    float read = 0.0;
    for (uint i = 0; i < dim; ++i) {
      uint before = s[i][thread];
      precise float kept = uintBitsToFloat(before) * uintBitsToFloat(decay[i]);
      float next = Fma(uintBitsToFloat(key[i]), kept, read);
      uint kept_bits = floatBitsToUint(kept);
      doubtful = doubtful || IsDoubtful(kept_bits, before, decay[i], 0u) ||
                 IsDoubtful(floatBitsToUint(next), key[i], kept_bits, floatBitsToUint(read));
      s[i][thread] = kept_bits;
      read = next;
    }
    uint delta = Delta(row, min(column, dim - 1), FromBits(floatBitsToUint(read)));
    doubtful = doubtful || IsSubnormal(delta);
    float sum = 0.0;
    for (uint i = 0; i < dim; ++i) {
      uint kept = s[i][thread];
      float after = Fma(uintBitsToFloat(key[i]), uintBitsToFloat(delta), uintBitsToFloat(kept));
      float next = Fma(uintBitsToFloat(query[i]), after, sum);
      uint after_bits = floatBitsToUint(after);
      doubtful = doubtful || IsDoubtful(after_bits, key[i], delta, kept) ||
                 IsDoubtful(floatBitsToUint(next), query[i], after_bits, floatBitsToUint(sum));
      s[i][thread] = after_bits;
      sum = next;
    }
    if (column < dim) result.at[row * dim + column] = floatBitsToUint(sum);
  }
  return doubtful;
}

void RunExactly(uint first, uint end, uint head, uint column, uint thread) {
  for (uint t = first; t < end; ++t) {
    uint row = t * heads + head;
    double read = 0.0lf;
    [[dont_unroll]] for (uint i = 0; i < dim; ++i) {
      double kept = Mul(FromBits(s[i][thread]), FromBits(alpha.at[row * dim + i]));
      read = Fma(FromBits(k.at[row * dim + i]), kept, read);
      s[i][thread] = ToBits(kept);
    }
    double delta = FromBits(Delta(row, column, read));
    double sum = 0.0lf;
    [[dont_unroll]] for (uint i = 0; i < dim; ++i) {
      double after = Fma(FromBits(k.at[row * dim + i]), delta, FromBits(s[i][thread]));
      sum = Fma(FromBits(q.at[row * dim + i]), after, sum);
      s[i][thread] = ToBits(after);
    }
    result.at[row * dim + column] = ToBits(sum);
  }
}

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint head = gl_WorkGroupID.y;
  uint column = gl_WorkGroupID.x * kColumns + thread;
  bool inside = column < dim;
  uint begin = head * dim * dim + column;
  if (thread == 0) odd_inputs = 0u;
  for (uint first = 0; first < n; first += kSteps) {
    uint end = min(n, first + kSteps);
    for (uint i = 0; i < dim; ++i) s[i][thread] = inside ? state.at[begin + i * dim] : 0u;
    bool doubtful = Run(first, end, head, column, thread);
    if (inside && flushes != 0u && (doubtful || odd_inputs != 0u)) {
      for (uint i = 0; i < dim; ++i) s[i][thread] = state.at[begin + i * dim];
      RunExactly(first, end, head, column, thread);
    }
    for (uint i = 0; inside && i < dim; ++i) state.at[begin + i * dim] = s[i][thread];
  }
}
