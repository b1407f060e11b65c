// Dot products of docs/numerics.md by 16 threads, the lanes. As floats while no product or sum can
// be subnormal, else as doubles (exact.glsl).
#include "arithmetic.glsl"
#include "exact.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { uint at[]; };

const uint kLanes = 16;

// Of nonzero values: the least exponent field of any; 255 for none.
uint Exponent(uint bits) {
  uint magnitude = bits & 0x7fffffffu;
  return magnitude == 0u ? 255u : magnitude >> 23;
}
// All values with that least exponent field are multiples of 2^(this).
int Quantum(uint exponent) { return exponent == 0u ? -100000 : int(exponent) - 150; }

// The least exponent field of a[first + thread], a[first + thread + threads], ...
uint LeastExponent(Floats a, uint first, uint count, uint thread, uint threads) {
  uint exponent = 255u;
  uint i = thread;
#ifndef EMULATE_FMA
  const uint kAhead = 8;  // loads that are under way at a time
  uint next[kAhead];
  [[unroll]] for (uint j = 0; j < kAhead; ++j) {
    next[j] = a.at[first + min(i + j * threads, count - 1)];
  }
  for (; i + (kAhead - 1) * threads < count; i += kAhead * threads) {
    uint bits[kAhead] = next;
    [[unroll]] for (uint j = 0; j < kAhead; ++j) {
      next[j] = a.at[first + min(i + (kAhead + j) * threads, count - 1)];
    }
    [[unroll]] for (uint j = 0; j < kAhead; ++j) exponent = min(exponent, Exponent(bits[j]));
  }
#endif
  for (; i < count; i += threads) exponent = min(exponent, Exponent(a.at[first + i]));
  return exponent;
}

// Lane `lane`'s partial sum of a and b.
float LaneSum(Floats a, uint a_first, Floats b, uint b_first, uint count, uint lane) {
  float sum = 0.0;
  uint whole = count / kLanes;
  uint step = 0;
#ifndef EMULATE_FMA
  // Values that are under way while those before them are used: loads that are used in the same
  // turn a compiler moves to where they are.
  const uint kAhead = 16;
  float next_x[kAhead];
  float next_y[kAhead];
  uint last = whole * kLanes - kLanes + lane;
  [[unroll]] for (uint i = 0; i < kAhead && whole >= kAhead; ++i) {
    next_x[i] = uintBitsToFloat(a.at[a_first + i * kLanes + lane]);
    next_y[i] = uintBitsToFloat(b.at[b_first + i * kLanes + lane]);
  }
  for (; step + kAhead <= whole; step += kAhead) {
    float x[kAhead] = next_x;
    float y[kAhead] = next_y;
    [[unroll]] for (uint i = 0; i < kAhead; ++i) {
      uint k = min((step + kAhead + i) * kLanes + lane, last);
      next_x[i] = uintBitsToFloat(a.at[a_first + k]);
      next_y[i] = uintBitsToFloat(b.at[b_first + k]);
    }
    [[unroll]] for (uint i = 0; i < kAhead; ++i) sum = Fma(x[i], y[i], sum);
  }
#endif
  for (; step < whole; ++step) {
    uint k = step * kLanes + lane;
    sum = Fma(uintBitsToFloat(a.at[a_first + k]), uintBitsToFloat(b.at[b_first + k]), sum);
  }
  if (whole * kLanes < count) {
    uint k = whole * kLanes + lane;
    bool inside = k < count;
    sum = Fma(inside ? uintBitsToFloat(a.at[a_first + k]) : 0.0,
              inside ? uintBitsToFloat(b.at[b_first + k]) : 0.0, sum);
  }
  return sum;
}
double ExactLaneSum(Floats a, uint a_first, Floats b, uint b_first, uint count, uint lane) {
  double sum = 0.0lf;
  for (uint first = 0; first < count; first += kLanes) {
    uint k = first + lane;
    bool inside = k < count;
    sum = Fma(FromBits(inside ? a.at[a_first + k] : 0u), FromBits(inside ? b.at[b_first + k] : 0u),
              sum);
  }
  return sum;
}
