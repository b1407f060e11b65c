// Weights as the operators see them: views of bytes that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltafin {

enum class WeightFormat : uint8_t {
  kF32,
  kBf16,
  kInt8,   // int8 values, one fp32 scale per row
  kMxfp4,  // E2M1 codes, two per byte (low nibble first), one E8M0 scale byte per 32 columns
};

// A row-major [rows, cols] weight, y = W x. `data` needs no alignment. Does not own. An `id` other
// than 0 names the values: whatever has the same id is the same matrix, wherever it lies, so that a
// device may keep a copy; `data` and `scales` may be null for a device that holds it
// (weight_keeper.h).
//   kF32:   cols * 4 bytes a row          kBf16: cols * 2 bytes a row
//   kInt8:  cols bytes a row;             scales: float[rows]
//   kMxfp4: cols / 2 bytes a row;         scales: uint8_t[rows][cols / 32]; cols % 32 == 0
struct Matrix {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  uint64_t id = 0;

  // Bytes of one row in `data` (without scales).
  int64_t row_bytes() const {
    switch (format) {
      case WeightFormat::kF32:
        return cols * 4;
      case WeightFormat::kBf16:
        return cols * 2;
      case WeightFormat::kInt8:
        return cols;
      case WeightFormat::kMxfp4:
        return cols / 2;
    }
    return 0;
  }
};

// One routed expert: w1 (gate) and w3 (up) are [width, latent], w2 (down) is [latent, width].
struct ExpertWeights {
  Matrix w1;
  Matrix w3;
  Matrix w2;
};

}  // namespace deltafin
