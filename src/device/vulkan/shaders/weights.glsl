// Weights as they lie in memory (lane_layout.h): what 16 bytes of a lane hold.
//   FORMAT  0 f32, 1 bf16, 2 int8
#if FORMAT == 0
const uint kColumns = 64;  // of a block
const uint kSteps = 4;     // of a lane in it
float Weight(uvec4 words, uint step) { return uintBitsToFloat(words[step]); }
#elif FORMAT == 1
const uint kColumns = 128;
const uint kSteps = 8;
float Weight(uvec4 words, uint step) {
  uint word = words[step >> 1];
  return uintBitsToFloat((step & 1u) == 0u ? word << 16 : word & 0xffff0000u);
}
#elif FORMAT == 2
const uint kColumns = 256;
const uint kSteps = 16;
// 2^23 + 128 + the integer, less the rest: exact, and several times as fast as a conversion.
float Weight(uvec4 words, uint step) {
  uint byte = words[step >> 2] >> (8 * (step & 3u)) & 255u;
  precise float value = uintBitsToFloat(byte | 0x4b000000u) - 8388736.0;
  return value;
}
#endif
