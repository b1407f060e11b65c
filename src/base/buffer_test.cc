#include "base/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/bf16.h"

namespace deltafin {
namespace {

TEST(AlignedBufferTest, IsAlignedAndZero) {
  for (size_t size : {1u, 15u, 64u, 1000u}) {
    AlignedBuffer<float> buffer(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    for (float x : buffer) EXPECT_EQ(x, 0.0f);
  }
}

TEST(Bf16Test, RoundsToNearestEven) {
  EXPECT_EQ(FloatToBf16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBf16(1.00390625f), 0x3f80);  // halfway between 1 and the next: even stays
  EXPECT_EQ(FloatToBf16(1.01171875f), 0x3f82);  // halfway: odd goes up
  EXPECT_EQ(Bf16ToFloat(FloatToBf16(-2.5f)), -2.5f);
}

}  // namespace
}  // namespace deltafin
