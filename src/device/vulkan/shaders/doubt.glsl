// Chains of a device's own operations where it may take subnormals for zero: what could have met
// one is noticed by its result, and computed again as doubles.

bool IsSubnormal(uint bits) {
  uint magnitude = bits & 0x7fffffffu;
  return magnitude != 0u && magnitude < 0x00800000u;
}
bool IsZero(uint bits) { return (bits & 0x7fffffffu) == 0u; }
// What a flushed result may be, and one that rounding may just have saved from it.
bool IsTiny(uint bits) { return (bits & 0x7fffffffu) < 0x01000000u; }

// Whether fma(a, b, c), or a * b where c is zero, may be wrong; of operands that are no subnormals.
bool IsDoubtful(uint result, uint a, uint b, uint c) {
  return IsTiny(result) && !((IsZero(a) || IsZero(b)) && IsZero(c));
}
