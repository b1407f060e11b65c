// The gated delta rule, step after step: a thread has a column (a value index) of a head's state for
// what must be added up in order; the other threads of the workgroup help with the rest.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
#include "exact.glsl"
#include "doubt.glsl"

const uint kColumns = 32;
const uint kThreads = 128;
const uint kMostDim = 128;
const uint kAhead = 8;   // values of a column that are under way at a time
const uint kSteps = 16;  // after which the state is in memory, from where a doubtful column starts
layout(local_size_x = 128) in;

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
shared uint deltas[kColumns];
shared uint is_doubtful;  // a bit for each column

uint Delta(uint beta_bits, uint value, double read) {
  return ToBits(Mul(FromBits(beta_bits), Add(FromBits(value), -read)));
}

// Adds factors[i] times the column's s[i], for i in order; the next values are under way meanwhile.
#define CHAIN(result, factors)                                                        \
  {                                                                                   \
    uint next_f[kAhead];                                                              \
    uint next_s[kAhead];                                                              \
    [[unroll]] for (uint j = 0; j < kAhead; ++j) {                                    \
      next_f[j] = factors[min(j, dim - 1)];                                           \
      next_s[j] = s[min(j, dim - 1)][x];                                              \
    }                                                                                 \
    for (uint i = 0; i < dim; i += kAhead) {                                          \
      uint f[kAhead] = next_f;                                                        \
      uint values[kAhead] = next_s;                                                   \
      [[unroll]] for (uint j = 0; j < kAhead; ++j) {                                  \
        next_f[j] = factors[min(i + kAhead + j, dim - 1)];                            \
        next_s[j] = s[min(i + kAhead + j, dim - 1)][x];                               \
      }                                                                               \
      [[unroll]] for (uint j = 0; j < kAhead; ++j) {                                  \
        if (i + j >= dim) break;                                                      \
        float next = Fma(uintBitsToFloat(f[j]), uintBitsToFloat(values[j]), result);  \
        if (IsTiny(floatBitsToUint(next))) {                                          \
          doubtful = doubtful || IsDoubtful(floatBitsToUint(next), f[j], values[j],   \
                                            floatBitsToUint(result));                 \
        }                                                                             \
        result = next;                                                                \
      }                                                                               \
    }                                                                                 \
  }

// Steps [first, end) with the device's own operations; notes columns in which one may have met a
// subnormal.
void Run(uint first, uint end, uint head, uint first_column, uint thread) {
  uint x = thread % kColumns;
  uint column = first_column + x;
  bool doubtful = false;
  for (uint t = first; t < end; ++t) {
    uint row = t * heads + head;
    barrier();
    uint beta_bits = beta.at[row];
    uint value = v.at[row * dim + min(column, dim - 1)];
    for (uint i = thread; i < dim; i += kThreads) {
      query[i] = q.at[row * dim + i];
      key[i] = k.at[row * dim + i];
      decay[i] = alpha.at[row * dim + i];
      if (IsSubnormal(query[i]) || IsSubnormal(key[i]) || IsSubnormal(decay[i])) {
        atomicOr(is_doubtful, 0xffffffffu);
      }
    }
    barrier();
    for (uint i = thread / kColumns; i < dim; i += kThreads / kColumns) {
      uint before = s[i][x];
      precise float kept = uintBitsToFloat(before) * uintBitsToFloat(decay[i]);
      uint bits = floatBitsToUint(kept);
      if (IsTiny(bits)) doubtful = doubtful || IsDoubtful(bits, before, decay[i], 0u);
      s[i][x] = bits;
    }
    barrier();
    if (thread < kColumns) {
      float read = 0.0;
      CHAIN(read, key)
      uint delta = Delta(beta_bits, value, FromBits(floatBitsToUint(read)));
      doubtful = doubtful || IsSubnormal(delta);
      deltas[x] = delta;
    }
    barrier();
    for (uint i = thread / kColumns; i < dim; i += kThreads / kColumns) {
      uint kept = s[i][x];
      float after = Fma(uintBitsToFloat(key[i]), uintBitsToFloat(deltas[x]), uintBitsToFloat(kept));
      uint bits = floatBitsToUint(after);
      if (IsTiny(bits)) doubtful = doubtful || IsDoubtful(bits, key[i], deltas[x], kept);
      s[i][x] = bits;
    }
    barrier();
    if (thread < kColumns) {
      float sum = 0.0;
      CHAIN(sum, query)
      if (column < dim) result.at[row * dim + column] = floatBitsToUint(sum);
    }
  }
  if (doubtful) atomicOr(is_doubtful, 1u << x);
  barrier();
}

void RunExactly(uint first, uint end, uint head, uint column, uint x) {
  for (uint t = first; t < end; ++t) {
    uint row = t * heads + head;
    double read = 0.0lf;
    [[dont_unroll]] for (uint i = 0; i < dim; ++i) {
      double kept = Mul(FromBits(s[i][x]), FromBits(alpha.at[row * dim + i]));
      read = Fma(FromBits(k.at[row * dim + i]), kept, read);
      s[i][x] = ToBits(kept);
    }
    double delta = FromBits(Delta(beta.at[row], v.at[row * dim + column], read));
    double sum = 0.0lf;
    [[dont_unroll]] for (uint i = 0; i < dim; ++i) {
      double after = Fma(FromBits(k.at[row * dim + i]), delta, FromBits(s[i][x]));
      sum = Fma(FromBits(q.at[row * dim + i]), after, sum);
      s[i][x] = ToBits(after);
    }
    result.at[row * dim + column] = ToBits(sum);
  }
}

void LoadState(uint begin, bool inside, uint x, uint set) {
  const uint kRows = 16;  // loads that are under way at a time
  const uint kSets = kThreads / kColumns;
  for (uint first = set; first < dim; first += kSets * kRows) {
    uint values[kRows];
    [[unroll]] for (uint j = 0; j < kRows; ++j) {
      uint i = min(first + j * kSets, dim - 1);
      values[j] = state.at[begin + i * dim];
    }
    [[unroll]] for (uint j = 0; j < kRows; ++j) {
      uint i = first + j * kSets;
      if (i < dim) s[i][x] = inside ? values[j] : 0u;
    }
  }
}

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint head = gl_WorkGroupID.y;
  uint x = thread % kColumns;
  uint set = thread / kColumns;
  uint first_column = gl_WorkGroupID.x * kColumns;
  uint column = first_column + x;
  bool inside = column < dim;
  uint begin = head * dim * dim + min(column, dim - 1);
  for (uint first = 0; first < n; first += kSteps) {
    uint end = min(n, first + kSteps);
    if (thread == 0) is_doubtful = 0u;
    LoadState(begin, inside, x, set);
    Run(first, end, head, first_column, thread);
    bool again = inside && flushes != 0u && set == 0u && (is_doubtful >> x & 1u) != 0u;
    if (again) {
      for (uint i = 0; i < dim; ++i) s[i][x] = state.at[begin + i * dim];
      RunExactly(first, end, head, column, x);
    }
    barrier();
    for (uint i = set; inside && i < dim; i += kThreads / kColumns) {
      state.at[begin + i * dim] = s[i][x];
    }
    barrier();
  }
}
