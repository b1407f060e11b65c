#include "device/vulkan/lane_layout.h"

#include <algorithm>
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
void LayOutRow(const std::byte* row, int64_t row_bytes, const std::byte* scales, int64_t num_scales,
               std::byte* to) {
  const int64_t block_bytes = kBlockBytes + (scales != nullptr ? kScaleBytes : 0);
  for (int64_t at = 0; at < row_bytes; at += kBlockBytes, to += block_bytes) {
    if (row_bytes - at >= kBlockBytes) {
      TransposeBlock<Element>(row + at, to);
    } else {
      std::byte filled[kBlockBytes] = {};
      std::memcpy(filled, row + at, static_cast<size_t>(row_bytes - at));
      TransposeBlock<Element>(filled, to);
    }
    if (scales == nullptr) continue;
    const int64_t first = at / 16;  // 16 bytes are 32 codes, which share a scale
    const int64_t count = std::min(kScaleBytes, num_scales - first);
    std::memset(to + kBlockBytes, 0, kScaleBytes);
    std::memcpy(to + kBlockBytes, scales + first, static_cast<size_t>(count));
  }
}

constexpr int64_t kInputBlock = 128;
constexpr int64_t kInputSteps = kInputBlock / kLanes;

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

}  // namespace

int QuantumOf(const float* x, int64_t count) noexcept {
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
    case WeightFormat::kMxfp4: {
      const std::byte* const scales = w.scales + first_row * (w.cols / 32);
      const auto least =
          std::to_integer<int>(*std::min_element(scales, scales + rows * (w.cols / 32)));
      return least == 0 ? kNoQuantum : std::min(0, least - 127) - 1;
    }
  }
  return kNoQuantum;
}

int64_t LaidOutInputFloats(int64_t cols) {
  return (cols + kInputBlock - 1) / kInputBlock * kInputBlock;
}

// Written in order: the memory may be the GPU's.
void LayOutInput(WeightFormat format, const float* x, int64_t cols, float* to) noexcept {
  const int64_t padded = LaidOutInputFloats(cols);
  if (format == WeightFormat::kMxfp4) {
    std::copy_n(x, cols, to);
    std::fill(to + cols, to + padded, 0.0f);
    return;
  }
  for (int64_t block = 0; block < padded; block += kInputBlock) {
    float in[kInputBlock] = {};
    const float* from = x + block;
    if (cols - block < kInputBlock) {
      std::copy_n(from, cols - block, in);
      from = in;
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      for (int64_t step = 0; step < kInputSteps; ++step) *to++ = from[step * kLanes + lane];
    }
  }
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
        LayOutRow<uint32_t>(from, row_bytes, nullptr, 0, to);
        break;
      case WeightFormat::kBf16:
        LayOutRow<uint16_t>(from, row_bytes, nullptr, 0, to);
        break;
      case WeightFormat::kInt8:
        LayOutRow<uint8_t>(from, row_bytes, nullptr, 0, to);
        break;
      case WeightFormat::kMxfp4: {
        const int64_t num_scales = w.cols / 32;
        LayOutRow<uint32_t>(from, row_bytes, w.scales + row * num_scales, num_scales, to);
        break;
      }
    }
  }
}

}  // namespace deltafin
