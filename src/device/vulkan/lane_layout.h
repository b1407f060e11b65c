// How weights lie in a GPU's memory: so that the thread of a lane (docs/numerics.md) reads its
// weights 16 bytes at a time, and the 16 threads of a row read one stretch of memory.
//
// A row is cut into blocks of 64 (f32), 128 (bf16), 256 (int8) or 512 (MXFP4) columns, the last one
// filled up with zeros. A block is 16 times 16 bytes, lane after lane; lane l has the elements
// l, 16 + l, 32 + l, ... of the block in that order. Integers have 128 added. For MXFP4 the
// elements are 32-bit words of eight codes, whose bits are spread so that two codes at a time
// become the halves of a word (shaders/product.comp); 16 bytes with the block's scales follow: byte
// 4 q + s is the scale of lanes 4 q to 4 q + 3 in the s-th 128 columns.
//
// shaders/lay_out.comp does the like with activations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/matrix.h"

namespace deltafin {

int64_t LaidOutRowBytes(WeightFormat format, int64_t cols);

// Rows [first_row, first_row + rows) of a matrix, without the scales of int8.
void LayOutRows(const Matrix& w, int64_t first_row, int64_t rows, std::byte* to) noexcept;

// A q such that every element of a matrix, and for int8 and MXFP4 every product with its scale, is
// a multiple of 2^q; hence nothing that is a sum of products with multiples of 2^p lies between 0
// and 2^(p + q). kNoQuantum where that is of no use: subnormals.
inline constexpr int kNoQuantum = -100'000;
int QuantumOf(const Matrix& w, int64_t first_row, int64_t rows) noexcept;
// The same for activations; for those that are multiplied with MXFP4, also where 2^14 times one of
// them may be infinite.
int QuantumOf(WeightFormat weights, const float* x, int64_t count) noexcept;

// Floats of a row of laid out activations.
int64_t LaidOutInputFloats(int64_t cols);

}  // namespace deltafin
