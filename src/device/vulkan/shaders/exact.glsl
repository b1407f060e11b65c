// The arithmetic of docs/numerics.md for operators that are few beside the products: floats are
// held as doubles and rounded to floats after each operation, so that division and square root are
// correctly rounded and subnormals are kept whatever the device does with them. A double has more
// than twice a float's bits: rounding the double result once more gives what rounding the exact one
// would.

// Of a float's bits.
double FromBits(uint bits) {
  uint magnitude = bits & 0x7fffffffu;
  uint sign = bits & 0x80000000u;
  if (magnitude >= 0x7f800000u) {  // infinite or not a number
    return packDouble2x32(
        uvec2(magnitude << 29, sign | 0x7ff00000u | (magnitude & 0x7fffffu) >> 3));
  }
  if (magnitude < 0x00800000u) {  // times 2^-149
    precise double value = double(magnitude) * packDouble2x32(uvec2(0u, 874u << 20));
    uvec2 words = unpackDouble2x32(value);
    return packDouble2x32(uvec2(words.x, words.y | sign));
  }
  return packDouble2x32(uvec2(magnitude << 29, sign | ((magnitude >> 3) + (896u << 20))));
}

// Of a double that is a float.
uint ToBits(double value) {
  uvec2 words = unpackDouble2x32(value);
  uint sign = words.y & 0x80000000u;
  uint high = words.y & 0x7fffffffu;
  if (high >= 0x7ff00000u) {
    return sign | 0x7f800000u | ((high & 0xfffffu) != 0u || words.x != 0u ? 0x400000u : 0u);
  }
  if (high < 897u << 20) {  // below 2^-126: times 2^149
    precise double units =
        packDouble2x32(uvec2(words.x, high)) * packDouble2x32(uvec2(0u, 1172u << 20));
    return sign | uint(units);
  }
  return sign | (high - (896u << 20)) << 3 | words.x >> 29;
}

// To the nearest float, ties to even.
double Round(double value) {
  uvec2 words = unpackDouble2x32(value);
  uint sign = words.y & 0x80000000u;
  uint high = words.y & 0x7fffffffu;
  if (high >= 0x7ff00000u) return value;
  if (high < 897u << 20) {  // multiples of 2^-149: adding 1.5 * 2^-97 leaves no smaller bits
    double magic = packDouble2x32(uvec2(0u, 926u << 20 | 0x80000u));
    precise double sum = packDouble2x32(uvec2(words.x, high)) + magic;
    precise double rounded = sum - magic;
    words = unpackDouble2x32(rounded);
    return packDouble2x32(uvec2(words.x, words.y | sign));
  }
  uint low = words.x + 0x0fffffffu + (words.x >> 29 & 1u);
  if (low < words.x) ++high;
  if (high >= 1151u << 20) return packDouble2x32(uvec2(0u, sign | 0x7ff00000u));
  return packDouble2x32(uvec2(low & 0xe0000000u, sign | high));
}

double Add(double a, double b) {
  precise double sum = a + b;
  return Round(sum);
}
double Mul(double a, double b) {
  precise double product = a * b;
  return Round(product);
}
double Div(double a, double b) {
  precise double quotient = a / b;
  return Round(quotient);
}
double Sqrt(double a) {
  precise double root = sqrt(a);
  return Round(root);
}

// The product is exact as a double. The sum is rounded to odd: of the two doubles around the exact
// value the one with an odd last bit, so that rounding it to a float once more gives what rounding
// the exact value would.
double OddSum(double product, double addend) {
  precise double sum = product + addend;
  precise double part = sum - product;
  precise double error = (product - (sum - part)) + (addend - part);
  uvec2 words = unpackDouble2x32(sum);
  bool inexact = error > 0.0 || error < 0.0;  // neither for a NaN
  if (inexact && (words.x & 1u) == 0u) {
    if ((error > 0.0) == (sum > 0.0)) {
      words.x |= 1u;
    } else {
      if (words.x == 0u) words.y -= 1u;
      words.x -= 1u;
    }
  }
  return packDouble2x32(words);
}
double Fma(double a, double b, double c) {
  precise double product = a * b;
  return Round(OddSum(product, c));
}

// Walked by loops: a software driver's compiler takes long for what unrolling would give.
const uint kExpTerms[6] = uint[](0x39506967u, 0x3ab743ceu, 0x3c088908u, 0x3d2aa9c1u, 0x3e2aaaaau,
                                 0x3f000000u);
const uint kTanhTerms[5] = uint[](0xbbbaf0eau, 0x3ca9134eu, 0xbd5c1e2du, 0x3e088393u, 0xbeaaaa99u);

double PowerOf2(int exponent) { return packDouble2x32(uvec2(0u, uint(1023 + exponent) << 20)); }

double Exp(double x) {
  x = -104.0lf > x ? -104.0lf : x;
  x = 89.0lf < x ? 89.0lf : x;
  const double kRound = 12582912.0lf;  // 1.5 * 2^23
  double n = Add(Fma(x, FromBits(0x3fb8aa3bu), kRound), -kRound);
  double r = Fma(n, FromBits(0xbf317200u), x);
  r = Fma(n, FromBits(0xb5bfbe8eu), r);
  double p = FromBits(kExpTerms[0]);
  [[dont_unroll]] for (uint i = 1; i < 6; ++i) p = Fma(p, r, FromBits(kExpTerms[i]));
  double y = Add(Fma(p, Mul(r, r), r), 1.0lf);
  int whole = int(n);
  int part = whole >> 1;
  return Mul(Mul(y, PowerOf2(part)), PowerOf2(whole - part));
}

double Sigmoid(double x) { return Div(1.0lf, Add(1.0lf, Exp(-x))); }

double Magnitude(double x) {
  uvec2 words = unpackDouble2x32(x);
  return packDouble2x32(uvec2(words.x, words.y & 0x7fffffffu));
}

// tanh(x), given exp(2 |x|).
double TanhOf(double x, double exponential) {
  double a = Magnitude(x);
  if (a < 0.625lf) {
    double z = Mul(x, x);
    double p = FromBits(kTanhTerms[0]);
    [[dont_unroll]] for (uint i = 1; i < 5; ++i) p = Fma(p, z, FromBits(kTanhTerms[i]));
    return Fma(Mul(p, z), x, x);
  }
  double tail = Add(1.0lf, -Div(2.0lf, Add(exponential, 1.0lf)));
  uvec2 words = unpackDouble2x32(tail);
  uint sign = unpackDouble2x32(x).y & 0x80000000u;
  return packDouble2x32(uvec2(words.x, (words.y & 0x7fffffffu) | sign));
}
