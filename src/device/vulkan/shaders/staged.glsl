// Lane sums (dot.glsl) of long rows by a workgroup of 256 threads: all of them bring pieces of up to
// two rows to shared memory, each while the lanes add up the one before it.
const uint kStagers = 256;
const uint kEach = 7;  // values of a row that a thread brings
const uint kPiece = kStagers * kEach;

#ifndef STAGED_ROWS
#define STAGED_ROWS 1
#endif
shared uint staged[STAGED_ROWS * kPiece];

// What a piece that begins at value `from` has of a row for this thread; zeros after the row's end.
uint[kEach] LoadPiece(Floats row, uint first, uint count, uint from, uint thread) {
  uint values[kEach];
  [[unroll]] for (uint j = 0; j < kEach; ++j) {
    uint i = from + j * kStagers + thread;
    values[j] = i < count ? row.at[first + i] : 0u;
  }
  return values;
}
// Returns the least exponent field of the values, or `exponent` if that is less.
uint StagePiece(uint values[kEach], uint place, uint thread, uint exponent) {
  [[unroll]] for (uint j = 0; j < kEach; ++j) {
    staged[place + j * kStagers + thread] = values[j];
    exponent = min(exponent, Exponent(values[j]));
  }
  return exponent;
}

// Adds a lane's products of the pieces at two places, which begin at value `from` of `count`.
float AddPieces(float sum, uint a, uint b, uint count, uint from, uint lane) {
  uint steps = (min(kPiece, count - from) + kLanes - 1) / kLanes;
  uint step = 0;
#ifndef EMULATE_FMA
  const uint kAtOnce = 16;
  for (; step + kAtOnce <= steps; step += kAtOnce) {
    uint x[kAtOnce];
    uint y[kAtOnce];
    [[unroll]] for (uint i = 0; i < kAtOnce; ++i) {
      x[i] = staged[a + (step + i) * kLanes + lane];
      y[i] = staged[b + (step + i) * kLanes + lane];
    }
    [[unroll]] for (uint i = 0; i < kAtOnce; ++i) {
      sum = Fma(uintBitsToFloat(x[i]), uintBitsToFloat(y[i]), sum);
    }
  }
#endif
  for (; step < steps; ++step) {
    uint k = step * kLanes + lane;
    sum = Fma(uintBitsToFloat(staged[a + k]), uintBitsToFloat(staged[b + k]), sum);
  }
  return sum;
}
