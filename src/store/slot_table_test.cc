#include "store/slot_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace deltafin {
namespace {

TEST(SlotTableTest, EvictsTheLeastRecentlyUsed) {
  const auto policy = MakeLruPolicy();
  SlotTable table(2, *policy);
  const auto a = table.Claim(10);
  const auto b = table.Claim(20);
  ASSERT_TRUE(a && b);
  EXPECT_FALSE(table.Claim(30));  // both are pinned
  table.Unpin(*b);
  table.Unpin(*a);
  table.Pin(*b);
  table.Unpin(*b);  // now a is the older one
  EXPECT_EQ(table.Claim(30), a);
  EXPECT_FALSE(table.Find(10));
  EXPECT_EQ(table.Find(20), b);
  EXPECT_TRUE(table.IsConsistent());
}

TEST(SlotTableTest, ForgottenSlotsAreTakenFirst) {
  const auto policy = MakeLruPolicy();
  SlotTable table(2, *policy);
  const auto a = table.Claim(10);
  const auto b = table.Claim(20);
  ASSERT_TRUE(a && b);
  table.Unpin(*a);
  table.Forget(*b);
  EXPECT_FALSE(table.Find(20));
  EXPECT_EQ(table.Claim(30), b);
  EXPECT_EQ(table.Find(10), a);
  EXPECT_TRUE(table.IsConsistent());
}

// What was read and never used goes before everything that was used; used after all, it stays.
TEST(SlotTableTest, UnneededSlotsAreEvictedFirst) {
  const auto policy = MakeLruPolicy();
  SlotTable table(3, *policy);
  const auto a = table.Claim(10);
  const auto b = table.Claim(20);
  const auto c = table.Claim(30);
  ASSERT_TRUE(a && b && c);
  table.Unpin(*a);
  table.UnpinUnneeded(*b);
  table.UnpinUnneeded(*c);
  EXPECT_TRUE(table.IsConsistent());
  table.Pin(*b);
  table.Unpin(*b);
  EXPECT_EQ(table.Claim(40), c);
  EXPECT_EQ(table.Claim(50), a);
  EXPECT_EQ(table.Find(20), b);
  EXPECT_TRUE(table.IsConsistent());
}

// Against a list of keys in order of use.
TEST(SlotTableTest, RandomOperationsMatchAModel) {
  struct Held {
    int64_t key;
    SlotTable::Slot slot;
  };
  std::mt19937 random(1);
  auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  for (const int64_t num_slots : {1, 2, 5, 16}) {
    const auto policy = MakeLruPolicy();
    SlotTable table(num_slots, *policy);
    std::vector<Held> pinned;
    std::vector<Held> unpinned;  // least recently used first
    for (int step = 0; step < 3000; ++step) {
      const size_t operation = below(4);
      if (operation == 0) {
        const int64_t key = static_cast<int64_t>(below(24));
        const auto is_key = [&](const Held& held) { return held.key == key; };
        const auto at = std::find_if(unpinned.begin(), unpinned.end(), is_key);
        const bool is_pinned = std::any_of(pinned.begin(), pinned.end(), is_key);
        ASSERT_EQ(table.Find(key).has_value(), is_pinned || at != unpinned.end());
        if (is_pinned) continue;
        if (at != unpinned.end()) {
          ASSERT_EQ(table.Find(key), at->slot);
          table.Pin(at->slot);
          pinned.push_back(*at);
          unpinned.erase(at);
          continue;
        }
        const bool is_full = pinned.size() + unpinned.size() == static_cast<size_t>(num_slots);
        const auto slot = table.Claim(key);
        ASSERT_EQ(slot.has_value(), !is_full || !unpinned.empty());
        if (!slot) continue;
        if (is_full) {
          ASSERT_EQ(*slot, unpinned.front().slot);
          unpinned.erase(unpinned.begin());
        }
        pinned.push_back({key, *slot});
      } else if (!pinned.empty()) {
        const auto it = pinned.begin() + static_cast<std::ptrdiff_t>(below(pinned.size()));
        if (operation == 1) {
          table.Forget(it->slot);
        } else {
          table.Unpin(it->slot);
          unpinned.push_back(*it);
        }
        pinned.erase(it);
      }
      ASSERT_TRUE(table.IsConsistent()) << step;
    }
  }
}

}  // namespace
}  // namespace deltafin
