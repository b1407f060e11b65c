// MXFP4 as checkpoints have it, at any address: two codes a byte, the first one in the lower half,
// and apart from them a byte for the scale of each 32.
#extension GL_EXT_buffer_reference_uvec2 : require

uint ByteAt(uvec2 address, uint byte) {
  uint at = (address.x & 3u) + byte;
  return Bits(uvec2(address.x & ~3u, address.y)).at[at / 4] >> (8 * (at % 4)) & 255u;
}
// Four bytes.
uint WordAt(uvec2 address, uint byte) {
  uint at = (address.x & 3u) + byte;
  Bits words = Bits(uvec2(address.x & ~3u, address.y));
  uint shift = 8 * (at % 4);
  uint word = words.at[at / 4];
  if (shift == 0u) return word;
  return word >> shift | words.at[at / 4 + 1] << (32u - shift);
}

// Eight codes of a row, from column k on, a multiple of eight.
uint CodesAt(Product product, uint row, uint k) {
  return WordAt(uvec2(product.weights), (row * product.cols + k) / 2);
}
uint ScaleAt(Product product, uint row, uint k) {
  return ByteAt(uvec2(product.scales), row * (product.cols / 32) + k / 32);
}
