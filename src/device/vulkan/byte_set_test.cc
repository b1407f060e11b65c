#include "device/vulkan/byte_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace deltafin {
namespace {

// Against a set that remembers each byte.
TEST(ByteSet, IsTheSetOfItsBytes) {
  constexpr uint64_t kBytes = 64;
  std::mt19937 random(11);
  ByteSet set;
  std::vector<bool> bytes(kBytes);
  for (int i = 0; i < 4000; ++i) {
    const uint64_t begin = random() % kBytes;
    const uint64_t end = begin + random() % (kBytes - begin + 1);
    const bool add = random() % 2 == 0;
    if (add) {
      set.Add(begin, end);
    } else {
      set.Remove(begin, end);
    }
    for (uint64_t byte = begin; byte < end; ++byte) bytes[byte] = add;
    uint64_t last_end = 0;
    for (const auto& [first, last] : set.ranges()) {
      ASSERT_LT(first, last);
      ASSERT_TRUE(last_end == 0 || first > last_end);  // else they were one
      last_end = last;
    }
    const uint64_t from = random() % kBytes;
    const uint64_t to = from + random() % (kBytes - from + 1);
    bool all = true;
    bool any = false;
    ASSERT_EQ(set.TotalBytes(),
              static_cast<uint64_t>(std::count(bytes.begin(), bytes.end(), true)));
    for (uint64_t byte = from; byte < to; ++byte) {
      all = all && bytes[byte];
      any = any || bytes[byte];
    }
    ASSERT_EQ(set.Contains(from, to), all) << from << " " << to;
    ASSERT_EQ(set.Overlaps(from, to), any) << from << " " << to;
  }
  set.Clear();
  EXPECT_TRUE(set.IsEmpty());
}

}  // namespace
}  // namespace deltafin
