// The arithmetic of docs/numerics.md. With EMULATE_FMA the fused multiply-add is computed in double
// precision, for devices whose own one rounds twice.
#ifdef FLOAT_CONTROLS
#extension GL_EXT_spirv_intrinsics : require
// DenormPreserve, of 32 bits.
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4464], 4459, 32);
#endif

#ifdef EMULATE_FMA
// The product of two floats is exact as a double. The sum is rounded to odd: of the two doubles
// around the exact value the one with an odd last bit, so that rounding it to a float once more
// gives what rounding the exact value would.
float Fma(float a, float b, float c) {
  precise double product = double(a) * double(b);
  precise double addend = double(c);
  precise double sum = product + addend;
  precise double part = sum - product;
  precise double error = (product - (sum - part)) + (addend - part);
  uvec2 bits = unpackDouble2x32(sum);
  bool inexact = error > 0.0 || error < 0.0;  // neither for a NaN
  if (inexact && (bits.x & 1u) == 0u) {
    if ((error > 0.0) == (sum > 0.0)) {
      bits.x |= 1u;
    } else {
      if (bits.x == 0u) bits.y -= 1u;
      bits.x -= 1u;
    }
  }
  return float(packDouble2x32(bits));
}
#else
float Fma(float a, float b, float c) {
  precise float result = fma(a, b, c);
  return result;
}
#endif
