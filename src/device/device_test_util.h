// What the tests of devices share: random inputs that try number formats hard, memory that notices
// a read or write beside it, comparison of bits.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/device.h"

namespace deltafin {

// Host memory (weights) that ends `slack` bytes before a page that may not be touched: a kernel
// that reads past the end of a weight crashes. The size and the slack leave the start misaligned.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes = 0, size_t slack = 0) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t usable = (bytes + slack + page - 1) / page * page;
    mapped_ = usable + page;
    void* base = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DF_CHECK(base != MAP_FAILED);
    base_ = static_cast<std::byte*>(base);
    DF_CHECK(mprotect(base_ + usable, page, PROT_NONE) == 0);
    data_ = base_ + usable - slack - bytes;
  }
  ~GuardedBytes() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }
  GuardedBytes(GuardedBytes&& other) noexcept { *this = std::move(other); }
  GuardedBytes& operator=(GuardedBytes&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    return *this;
  }

  std::byte* data() const { return data_; }

 private:
  std::byte* base_ = nullptr;
  size_t mapped_ = 0;
  std::byte* data_ = nullptr;
};

// A float array of the host in guarded memory.
class GuardedFloats {
 public:
  explicit GuardedFloats(const std::vector<float>& values) : bytes_(values.size() * sizeof(float)) {
    std::memcpy(bytes_.data(), values.data(), values.size() * sizeof(float));
  }
  const float* data() const { return reinterpret_cast<const float*>(bytes_.data()); }

 private:
  GuardedBytes bytes_;
};

// A matrix with its bytes.
struct OwnedMatrix {
  GuardedBytes data;
  GuardedBytes scales;
  Matrix view;
};

inline size_t ScaleBytes(const Matrix& matrix) {
  if (matrix.format == WeightFormat::kInt8) return static_cast<size_t>(matrix.rows) * 4;
  if (matrix.format == WeightFormat::kMxfp4) {
    return static_cast<size_t>(matrix.rows * (matrix.cols / 32));
  }
  return 0;
}

inline OwnedMatrix MakeMatrix(WeightFormat format, int64_t rows, int64_t cols, size_t slack = 0) {
  OwnedMatrix matrix;
  matrix.view.format = format;
  matrix.view.rows = rows;
  matrix.view.cols = cols;
  matrix.data = GuardedBytes(static_cast<size_t>(rows * matrix.view.row_bytes()), slack);
  matrix.scales = GuardedBytes(ScaleBytes(matrix.view), slack);
  matrix.view.data = matrix.data.data();
  matrix.view.scales = ScaleBytes(matrix.view) > 0 ? matrix.scales.data() : nullptr;
  return matrix;
}

enum class Range {
  kOrdinary,  // about -2 .. 2
  kWild,      // zeros of both signs, subnormals, 2^-149 .. 2^55: nothing overflows in a product
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  uint32_t Bits() { return static_cast<uint32_t>(engine_()); }
  int64_t Between(int64_t low, int64_t high) {  // inclusive
    return low + static_cast<int64_t>(Bits() % static_cast<uint64_t>(high - low + 1));
  }
  float Uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(Bits() >> 8) * 0x1p-24f;
  }

  float Value(Range range) {
    if (range == Range::kOrdinary) return Uniform(-1, 1) + Uniform(-1, 1);
    const uint32_t sign = Bits() & 0x80000000u;
    const uint32_t fraction = Bits() & 0x007fffffu;
    switch (Bits() % 8) {
      case 0:
        return std::bit_cast<float>(sign);  // +0 or -0
      case 1:
        return std::bit_cast<float>(sign | fraction);  // subnormal
      case 2:
      case 3:
        return Uniform(-2, 2);
      default:
        return std::bit_cast<float>(sign | (Bits() % 183) << 23 | fraction);
    }
  }
  std::vector<float> Values(int64_t count, Range range = Range::kOrdinary) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = Value(range);
    return values;
  }

  OwnedMatrix MatrixOf(WeightFormat format, int64_t rows, int64_t cols,
                       Range range = Range::kOrdinary) {
    const int64_t slack = Bits() % 4 == 0 ? Between(1, 7) : 0;
    OwnedMatrix matrix = MakeMatrix(format, rows, cols, static_cast<size_t>(slack));
    std::byte* const data = matrix.data.data();
    for (int64_t i = 0; i < rows * cols; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(Value(range));
      if (format == WeightFormat::kF32) std::memcpy(data + 4 * i, &bits, 4);
      const auto upper = static_cast<uint16_t>(bits >> 16);
      if (format == WeightFormat::kBf16) std::memcpy(data + 2 * i, &upper, 2);
    }
    if (format == WeightFormat::kInt8 || format == WeightFormat::kMxfp4) {
      std::generate_n(data, rows * matrix.view.row_bytes(),
                      [this] { return static_cast<std::byte>(Bits()); });
    }
    for (int64_t row = 0; row < rows && format == WeightFormat::kInt8; ++row) {
      const float scale = range == Range::kOrdinary ? Uniform(0.001f, 0.02f) : Value(range);
      std::memcpy(matrix.scales.data() + 4 * row, &scale, 4);
    }
    if (format == WeightFormat::kMxfp4) {
      // Up to 2^53: times a wild value times 6 * 8 stays finite. Byte 0 is the subnormal scale.
      std::generate_n(matrix.scales.data(), ScaleBytes(matrix.view), [this, range] {
        return static_cast<std::byte>(range == Range::kOrdinary ? Between(110, 130)
                                                                : Between(0, 180));
      });
    }
    return matrix;
  }

 private:
  std::mt19937 engine_;
};

// A NaN that no operation makes: memory that holds it was not written.
constexpr uint32_t kFenceBits = 0x7fc0dead;

// Floats in device memory, at an address that is a multiple of 4 only, between two fences.
class DeviceFloats {
 public:
  DeviceFloats(Device& device, std::vector<float> values, int64_t misalignment = 1)
      : device_(device), count_(values.size()), begin_(kFence + static_cast<size_t>(misalignment)) {
    std::vector<float> all(begin_ + count_ + kFence, std::bit_cast<float>(kFenceBits));
    std::copy(values.begin(), values.end(), all.begin() + static_cast<int64_t>(begin_));
    buffer_ = DeviceBuffer(device, all.size() * sizeof(float));
    device.ToDevice(buffer_.address(), all.data(), all.size() * sizeof(float));
  }
  DeviceFloats(Device& device, int64_t count)  // output: all fence, to notice what is missing
      : DeviceFloats(device, std::vector<float>(static_cast<size_t>(count),
                                                std::bit_cast<float>(kFenceBits))) {}

  float* data() const { return buffer_.floats() + begin_; }

  // The values; a failure when something beside them was written.
  std::vector<float> Read() const {
    std::vector<float> all(begin_ + count_ + kFence);
    device_.ToHost(all.data(), buffer_.address(), all.size() * sizeof(float));
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= begin_ && i < begin_ + count_) continue;
      if (std::bit_cast<uint32_t>(all[i]) != kFenceBits) {
        ADD_FAILURE() << "written outside, at " << static_cast<int64_t>(i - begin_) << " of "
                      << count_;
        break;
      }
    }
    return {all.begin() + static_cast<int64_t>(begin_),
            all.begin() + static_cast<int64_t>(begin_ + count_)};
  }

 private:
  static constexpr size_t kFence = 32;
  Device& device_;
  size_t count_;
  size_t begin_;
  DeviceBuffer buffer_;
};

// Equal bits; any NaN equals any NaN (docs/numerics.md), but what is left alone must be left alone.
inline void ExpectSameBits(const std::vector<float>& expected, const std::vector<float>& got,
                           const std::string& what) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  const auto is_result_nan = [](float x) {
    return std::isnan(x) && std::bit_cast<uint32_t>(x) != kFenceBits;
  };
  ASSERT_LE(std::count_if(expected.begin(), expected.end(), is_result_nan),
            static_cast<int64_t>(expected.size()) / 4)
      << what << ": little to compare";
  for (size_t i = 0; i < expected.size(); ++i) {
    if (is_result_nan(expected[i]) && is_result_nan(got[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(got[i]))
        << what << ": element " << i << " of " << expected.size() << ": expected " << expected[i]
        << ", got " << got[i];
  }
}

}  // namespace deltafin
