#include "io/name_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deltafin {
namespace {

TEST(NameList, SortsByBytesAndFinds) {
  NameList names;
  for (const std::string_view name : {"b", "a.10", "", "a.2", "\xc3\xa4", "B"}) names.Add(name);
  const std::vector<uint32_t> order = names.SortedOrder();
  EXPECT_THAT(order, ::testing::ElementsAre(2, 5, 1, 3, 0, 4));
  const NameList sorted = names.InOrder(order);
  ASSERT_EQ(sorted.size(), 6u);
  for (size_t i = 0; i < sorted.size(); ++i) {
    EXPECT_EQ(sorted[i], names[order[i]]);
    EXPECT_EQ(sorted.Find(sorted[i]), i);
  }
  for (const std::string_view absent : {"a", "a.1", "a.100", "c", "\xff"}) {
    EXPECT_EQ(sorted.Find(absent), std::nullopt) << absent;
  }
  EXPECT_EQ(sorted.FindRepeated(), std::nullopt);
}

TEST(NameList, FindsRepeatedNames) {
  NameList names;
  for (const std::string_view name : {"a", "b", "b", "c"}) names.Add(name);
  EXPECT_EQ(names.FindRepeated(), "b");
}

TEST(NameList, Empty) {
  const NameList names;
  EXPECT_EQ(names.size(), 0u);
  EXPECT_EQ(names.Find(""), std::nullopt);
  EXPECT_EQ(names.FindRepeated(), std::nullopt);
  EXPECT_TRUE(names.InOrder(names.SortedOrder()).Find("x") == std::nullopt);
}

}  // namespace
}  // namespace deltafin
