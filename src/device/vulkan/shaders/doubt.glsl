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

// What follows is for shaders with both arithmetics: the device's own operation where that is right.

uint MulBits(uint a, uint b) {
  precise float product = uintBitsToFloat(a) * uintBitsToFloat(b);
  uint bits = floatBitsToUint(product);
  return IsDoubtful(bits, a, b, 0u) ? ToBits(Mul(FromBits(a), FromBits(b))) : bits;
}

uint AddBits(uint a, uint b) {
  precise float sum = uintBitsToFloat(a) + uintBitsToFloat(b);
  uint bits = floatBitsToUint(sum);
  bool doubtful = IsTiny(bits) || IsSubnormal(a) || IsSubnormal(b);
  return doubtful ? ToBits(Add(FromBits(a), FromBits(b))) : bits;
}

// a * b + c * d, where the second product is rounded first.
uint MergeBits(uint a, uint b, uint c, uint d) {
  precise float product = uintBitsToFloat(c) * uintBitsToFloat(d);
  uint second = floatBitsToUint(product);
  uint bits = floatBitsToUint(Fma(uintBitsToFloat(a), uintBitsToFloat(b), product));
  bool doubtful = IsTiny(second) || IsTiny(bits) || IsSubnormal(a) || IsSubnormal(b);
  if (!doubtful) return bits;
  return ToBits(Fma(FromBits(a), FromBits(b), Mul(FromBits(c), FromBits(d))));
}

uint ExpBits(uint bits) {
  uint magnitude = bits & 0x7fffffffu;
  // From 2^-20 to 80 nothing on the way is subnormal: what is left of x without its multiple of ln 2
  // is 0 or more than 2^-44.
  bool is_plain = magnitude == 0u || (magnitude >= 0x35800000u && magnitude <= 0x42a00000u);
  if (!is_plain) return ToBits(Exp(FromBits(bits)));
  float x = uintBitsToFloat(bits);
  const float kRound = 12582912.0;  // 1.5 * 2^23
  precise float n = Fma(x, uintBitsToFloat(0x3fb8aa3bu), kRound) - kRound;
  float r = Fma(n, uintBitsToFloat(0xbf317200u), x);
  r = Fma(n, uintBitsToFloat(0xb5bfbe8eu), r);
  float p = uintBitsToFloat(kExpTerms[0]);
  for (uint i = 1; i < 6; ++i) p = Fma(p, r, uintBitsToFloat(kExpTerms[i]));
  precise float square = r * r;
  precise float y = Fma(p, square, r) + 1.0;
  int whole = int(n);
  int part = whole >> 1;
  precise float half_way = y * uintBitsToFloat(uint(127 + part) << 23);
  precise float result = half_way * uintBitsToFloat(uint(127 + whole - part) << 23);
  return floatBitsToUint(result);
}

// The divisor is a normal number.
uint SigmoidBits(uint bits) {
  return ToBits(Div(1.0lf, FromBits(AddBits(0x3f800000u, ExpBits(bits ^ 0x80000000u)))));
}

// The same of doubles that are floats.
double FastExp(double x) { return FromBits(ExpBits(ToBits(x))); }
double FastSigmoid(double x) { return FromBits(SigmoidBits(ToBits(x))); }
