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
          if (k < cols) {
            const std::byte* const from = w.view.data + (row + 1) * w.view.row_bytes() + k * size;
            want.assign(from, from + size);
          }
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
        std::vector<std::byte> want(4);
        if (word < cols / 8) {
          const std::byte* const from = w.view.data + row * w.view.row_bytes() + word * 4;
          want.assign(from, from + 4);
        }
        const std::byte* const block = laid_out.data() + row * bytes + word / 64 * 272;
        EXPECT_EQ(want, Element(block, 0, word % 16, word / 16 % 4, 4));
      }
      for (int64_t scale = 0; scale < (cols + 511) / 512 * 16; ++scale) {
        const std::byte want =
            scale < cols / 32 ? w.view.scales[row * (cols / 32) + scale] : std::byte{0};
        EXPECT_EQ(want,
                  laid_out[static_cast<size_t>(row * bytes + scale / 16 * 272 + 256 + scale % 16)]);
      }
    }
  }
}

TEST(LaneLayout, ActivationsFollowTheLanes) {
  Random random(5);
  for (const int64_t cols : {1, 32, 128, 200}) {
    const std::vector<float> x = random.Values(cols);
    const auto padded = static_cast<size_t>(LaidOutInputFloats(cols));
    std::vector<float> dense(padded, 7.0f);
    std::vector<float> plain(padded, 7.0f);
    LayOutInput(WeightFormat::kBf16, x.data(), cols, dense.data());
    LayOutInput(WeightFormat::kMxfp4, x.data(), cols, plain.data());
    for (size_t k = 0; k < padded; ++k) {
      const float want = k < x.size() ? x[k] : 0.0f;
      EXPECT_EQ(dense[k / 128 * 128 + k % 16 * 8 + k / 16 % 8], want) << k;
      EXPECT_EQ(plain[k], want) << k;
    }
  }
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
