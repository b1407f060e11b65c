#include "store/byte_ring.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace deltafin {
namespace {

TEST(ByteRingTest, WrapsWhereABlockFits) {
  ByteRing ring(10);
  EXPECT_EQ(ring.Claim(11), std::nullopt);
  EXPECT_EQ(ring.Claim(4), 0u);
  EXPECT_EQ(ring.Claim(4), 4u);
  EXPECT_EQ(ring.Claim(3), std::nullopt);  // 2 at the end, none at the beginning
  EXPECT_EQ(ring.Claim(2), 8u);
  ring.FreeOldest();
  EXPECT_EQ(ring.Claim(5), std::nullopt);
  EXPECT_EQ(ring.Claim(3), 0u);
  EXPECT_EQ(ring.Claim(2), std::nullopt);
  EXPECT_EQ(ring.Claim(1), 3u);
  EXPECT_EQ(ring.Claim(1), std::nullopt);
  for (int i = 0; i < 4; ++i) ring.FreeOldest();
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.Claim(10), 0u);
}

TEST(ByteRingTest, BlocksNeverOverlap) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const size_t capacity = 1 + random() % 60;
    ByteRing ring(capacity);
    std::vector<std::pair<size_t, size_t>> blocks;  // oldest first
    for (int step = 0; step < 300; ++step) {
      const size_t bytes = 1 + random() % capacity;
      const auto begin = ring.Claim(bytes);
      if (!begin) {
        ASSERT_FALSE(blocks.empty());
        ring.FreeOldest();
        blocks.erase(blocks.begin());
        continue;
      }
      ASSERT_LE(*begin + bytes, capacity);
      for (const auto& [from, to] : blocks) ASSERT_TRUE(*begin + bytes <= from || to <= *begin);
      blocks.emplace_back(*begin, *begin + bytes);
    }
  }
}

}  // namespace
}  // namespace deltafin
