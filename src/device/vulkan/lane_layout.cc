#include "device/vulkan/lane_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace deltafin {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kLaneBytes = 16;
constexpr int64_t kBlockBytes = kLanes * kLaneBytes;  // weights of a row's block
constexpr int64_t kScaleBytes = 16;

int64_t Blocks(WeightFormat format, int64_t cols) {
  const int64_t bytes = Matrix{format, 1, cols}.row_bytes();
  return (bytes + kBlockBytes - 1) / kBlockBytes;
}

// A whole block: [steps][lanes] becomes [lanes][steps].
template <class Element>
void TransposeBlock(const std::byte* from, std::byte* to) {
  constexpr int64_t kSteps = kLaneBytes / static_cast<int64_t>(sizeof(Element));
  Element in[kSteps][kLanes];
  Element out[kLanes][kSteps];
  std::memcpy(in, from, sizeof(in));
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    for (int64_t step = 0; step < kSteps; ++step) out[lane][step] = in[step][lane];
  }
  std::memcpy(to, out, sizeof(out));
}

template <class Element>
void LayOutRow(const std::byte* row, int64_t row_bytes, std::byte* to) {
  for (int64_t at = 0; at < row_bytes; at += kBlockBytes, to += kBlockBytes) {
    std::byte filled[kBlockBytes] = {};
    std::memcpy(filled, row + at, static_cast<size_t>(std::min(kBlockBytes, row_bytes - at)));
    TransposeBlock<Element>(filled, to);
    if constexpr (sizeof(Element) == 1) {
      for (int64_t i = 0; i < kBlockBytes; ++i) to[i] ^= std::byte{0x80};
    }
  }
}

// By the number of a byte in its word and its value: where its two codes' bits go.
using SpreadTable = std::array<std::array<uint32_t, 256>, 4>;
constexpr SpreadTable kSpread = [] {
  constexpr int kMagnitudeAt[4] = {9, 6, 3, 0};
  constexpr int kSignAt[4] = {15, 12, 13, 14};
  SpreadTable table{};
  for (size_t pair = 0; pair < 4; ++pair) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t first = (byte & 7) << kMagnitudeAt[pair] | (byte >> 3 & 1) << kSignAt[pair];
      const uint32_t second = (byte >> 4 & 7) << kMagnitudeAt[pair] | (byte >> 7 & 1)
                                                                          << kSignAt[pair];
      table[pair][byte] = first | second << 16;
    }
  }
  return table;
}();

void LayOutMxfp4Row(const std::byte* row, int64_t row_bytes, const std::byte* scales,
                    int64_t num_scales, std::byte* to) {
  constexpr int64_t kWords = kBlockBytes / 4;
  for (int64_t at = 0; at < row_bytes; at += kBlockBytes, to += kBlockBytes + kScaleBytes) {
    std::byte filled[kBlockBytes] = {};
    std::memcpy(filled, row + at, static_cast<size_t>(std::min(kBlockBytes, row_bytes - at)));
    uint32_t words[kWords];
    for (int64_t i = 0; i < kWords; ++i) {
      words[i] = 0;
      for (size_t pair = 0; pair < 4; ++pair) {
        words[i] |=
            kSpread[pair][std::to_integer<size_t>(filled[4 * i + static_cast<int64_t>(pair)])];
      }
    }
    TransposeBlock<uint32_t>(reinterpret_cast<const std::byte*>(words), to);
    const int64_t first = at / 16;  // 16 bytes are 32 codes, which share a scale
    for (int64_t i = 0; i < kScaleBytes; ++i) {
      to[kBlockBytes + i % 4 * 4 + i / 4] =
          first + i < num_scales ? scales[first + i] : std::byte{};
    }
  }
}

constexpr int64_t kInputBlock = 128;

// Of floats given by their upper 16 bits (which hold the exponent) and whether they are zero.
constexpr uint32_t kMostExponent = 0x7f80;

// The least exponent field of the values that are not zero; kMostExponent >> 7 when all are.
template <class Bits>
uint32_t LeastExponent(const std::byte* from, int64_t count) {
  constexpr int kShift = 8 * static_cast<int>(sizeof(Bits)) - 9;  // 23 or 7
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  Bits least = static_cast<Bits>(Bits{kMostExponent >> 7} << kShift);
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    bits &= kMagnitude;
    const Bits other = bits == 0 ? least : bits;
    least = other < least ? other : least;
  }
  return static_cast<uint32_t>(least >> kShift);
}

// `fraction_bits` of each value.
int QuantumOfExponent(uint32_t least, int fraction_bits) {
  return least == 0 ? kNoQuantum : static_cast<int>(least) - 127 - fraction_bits;
}

// Scales of blocks whose codes are all zero do not count.
int QuantumOfMxfp4(const Matrix& w, int64_t first_row, int64_t rows) {
  constexpr int64_t kCodeBytes = 16;  // of a block
  constexpr std::byte kMagnitudes{0x77};
  const int64_t first = first_row * (w.cols / 32);
  int least = 255;
  for (int64_t block = first; block < first + rows * (w.cols / 32); ++block) {
    const auto scale = std::to_integer<int>(w.scales[block]);
    if (scale >= least) continue;
    const std::byte* const codes = w.data + block * kCodeBytes;
    const bool is_zero = std::all_of(codes, codes + kCodeBytes, [](std::byte pair) {
      return (pair & kMagnitudes) == std::byte{0};
    });
    if (!is_zero) least = scale;
  }
  return least == 0 ? kNoQuantum : std::min(0, least - 127) - 1;
}

}  // namespace

int QuantumOf(WeightFormat weights, const float* x, int64_t count) noexcept {
  constexpr float kMost = 0x1p113f;
  if (weights == WeightFormat::kMxfp4 &&
      !std::all_of(x, x + count, [](float value) { return std::fabs(value) < kMost; })) {
    return kNoQuantum;
  }
  return QuantumOfExponent(LeastExponent<uint32_t>(reinterpret_cast<const std::byte*>(x), count),
                           23);
}

int QuantumOf(const Matrix& w, int64_t first_row, int64_t rows) noexcept {
  const std::byte* const from = w.data + first_row * w.row_bytes();
  switch (w.format) {
    case WeightFormat::kF32:
      return QuantumOfExponent(LeastExponent<uint32_t>(from, rows * w.cols), 23);
    case WeightFormat::kBf16:
      return QuantumOfExponent(LeastExponent<uint16_t>(from, rows * w.cols), 7);
    case WeightFormat::kInt8:
      return std::min(
          0, QuantumOfExponent(LeastExponent<uint32_t>(w.scales + first_row * 4, rows), 0));
    case WeightFormat::kMxfp4:
      return QuantumOfMxfp4(w, first_row, rows);
  }
  return kNoQuantum;
}

int64_t LaidOutInputFloats(int64_t cols) {
  return (cols + kInputBlock - 1) / kInputBlock * kInputBlock;
}

int64_t LaidOutRowBytes(WeightFormat format, int64_t cols) {
  const int64_t scales = format == WeightFormat::kMxfp4 ? kScaleBytes : 0;
  return Blocks(format, cols) * (kBlockBytes + scales);
}

void LayOutRows(const Matrix& w, int64_t first_row, int64_t rows, std::byte* to) noexcept {
  const int64_t row_bytes = w.row_bytes();
  const int64_t laid_out = LaidOutRowBytes(w.format, w.cols);
  for (int64_t row = first_row; row < first_row + rows; ++row, to += laid_out) {
    const std::byte* const from = w.data + row * row_bytes;
    switch (w.format) {
      case WeightFormat::kF32:
        LayOutRow<uint32_t>(from, row_bytes, to);
        break;
      case WeightFormat::kBf16:
        LayOutRow<uint16_t>(from, row_bytes, to);
        break;
      case WeightFormat::kInt8:
        LayOutRow<uint8_t>(from, row_bytes, to);
        break;
      case WeightFormat::kMxfp4: {
        const int64_t num_scales = w.cols / 32;
        LayOutMxfp4Row(from, row_bytes, w.scales + row * num_scales, num_scales, to);
        break;
      }
    }
  }
}

}  // namespace deltafin
