#include "device/vulkan/lane_layout.h"

#include <gtest/gtest.h>

#include "device/device_test_util.h"
#include "device/weight_keeper.h"

namespace deltafin {
namespace {

// The element of `size` bytes that step `step` of lane `lane` of a block finds in a row.
std::vector<std::byte> Element(const std::byte* row, int64_t block, int64_t lane, int64_t step,
                               int64_t size) {
  const std::byte* const at = row + block * 256 + lane * 16 + step * size;
  return {at, at + size};
}

TEST(LaneLayout, EachLaneHasItsElementsInOrder) {
  Random random(3);
  for (const auto& [format, size] :
       {std::pair{WeightFormat::kF32, 4}, {WeightFormat::kBf16, 2}, {WeightFormat::kInt8, 1}}) {
    for (const int64_t cols : {1, 16, 255, 256, 700}) {
      const OwnedMatrix w = random.MatrixOf(format, 3, cols);
      const int64_t bytes = LaidOutRowBytes(format, cols);
      std::vector<std::byte> laid_out(static_cast<size_t>(2 * bytes), std::byte{0x55});
      LayOutRows(w.view, 1, 2, laid_out.data());
      const int64_t steps = 16 / size;
      for (int64_t row = 0; row < 2; ++row) {
        for (int64_t k = 0; k < bytes / size; ++k) {
          std::vector<std::byte> want(static_cast<size_t>(size));  // zeros after the last column
          const auto offset = format == WeightFormat::kInt8 ? std::byte{0x80} : std::byte{0};
          if (k < cols) {
            const std::byte* const from = w.view.data + (row + 1) * w.view.row_bytes() + k * size;
            want.assign(from, from + size);
          }
          want[0] ^= offset;
          EXPECT_EQ(want, Element(laid_out.data() + row * bytes, k / (16 * steps), k % 16,
                                  k / 16 % steps, size))
              << "column " << k << " of " << cols;
        }
      }
    }
  }
}

TEST(LaneLayout, Mxfp4HasTheScalesOfABlockBehindIt) {
  Random random(4);
  for (const int64_t cols : {32, 512, 608}) {
    const OwnedMatrix w = random.MatrixOf(WeightFormat::kMxfp4, 2, cols);
    const int64_t bytes = LaidOutRowBytes(WeightFormat::kMxfp4, cols);
    ASSERT_EQ(bytes, (cols + 511) / 512 * 272);
    std::vector<std::byte> laid_out(static_cast<size_t>(2 * bytes), std::byte{0x55});
    LayOutRows(w.view, 0, 2, laid_out.data());
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t word = 0; word < (cols + 511) / 512 * 64; ++word) {
        const std::byte* const block = laid_out.data() + row * bytes + word / 64 * 272;
        uint32_t got = 0;
        std::memcpy(&got, Element(block, 0, word % 16, word / 16 % 4, 4).data(), 4);
        for (int64_t j = 0; j < 8; ++j) {  // codes; zeros after the last column
          uint32_t want = 0;
          if (word < cols / 8) {
            want =
                std::to_integer<uint32_t>(w.view.data[row * w.view.row_bytes() + word * 4 + j / 2]);
            want = want >> (j % 2 * 4) & 15;
          }
          const uint32_t half = got >> (j % 2 * 16) & 0xffff;
          const int64_t pair = j / 2;
          const uint32_t magnitude = half >> (9 - 3 * pair) & 7;
          const uint32_t sign = half >> (pair == 0 ? 15 : 11 + pair) & 1;
          EXPECT_EQ(want, magnitude | sign << 3) << "code " << j << " of word " << word;
        }
      }
      for (int64_t scale = 0; scale < (cols + 511) / 512 * 16; ++scale) {
        const std::byte want =
            scale < cols / 32 ? w.view.scales[row * (cols / 32) + scale] : std::byte{0};
        const int64_t at = scale % 4 * 4 + scale / 4 % 4;
        EXPECT_EQ(want, laid_out[static_cast<size_t>(row * bytes + scale / 16 * 272 + 256 + at)]);
      }
    }
  }
}

TEST(LaneLayout, TheQuantumIsWhatEverythingIsAMultipleOf) {
  OwnedMatrix w = MakeMatrix(WeightFormat::kMxfp4, 1, 96);
  std::fill_n(w.data.data(), 48, std::byte{0x12});
  const auto set_scales = [&](int a, int b, int c) {
    w.scales.data()[0] = static_cast<std::byte>(a);
    w.scales.data()[1] = static_cast<std::byte>(b);
    w.scales.data()[2] = static_cast<std::byte>(c);
  };
  set_scales(130, 120, 140);
  EXPECT_EQ(QuantumOf(w.view, 0, 1), -8);  // halves times 2^-7
  set_scales(130, 0, 140);
  EXPECT_EQ(QuantumOf(w.view, 0, 1), kNoQuantum);
  std::fill_n(w.data.data() + 16, 16, std::byte{0x80});  // zeros of both signs
  EXPECT_EQ(QuantumOf(w.view, 0, 1), -1);

  const float x[] = {0.0f, -3.0f, 0x1p-20f};
  EXPECT_EQ(QuantumOf(WeightFormat::kBf16, x, 3), -43);
  const float large[] = {1.0f, 0x1p120f};
  EXPECT_EQ(QuantumOf(WeightFormat::kMxfp4, large, 2), kNoQuantum);
  EXPECT_EQ(QuantumOf(WeightFormat::kBf16, large, 2), -23);
}

TEST(LaneLayout, NothingTakesMoreThanIsPlanned) {
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kMxfp4}) {
    for (const int64_t cols : {32, 96, 512, 544, 3584, 7168}) {
      const int64_t rows = 7;
      const int64_t scales = format == WeightFormat::kInt8 ? rows * 4 + 64 : 0;
      EXPECT_LE(rows * LaidOutRowBytes(format, cols) + scales + 255,
                static_cast<int64_t>(KeptBytes({format, rows, cols})));
    }
  }
}

}  // namespace
}  // namespace deltafin
