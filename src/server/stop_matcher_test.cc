#include "server/stop_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace deltafin {
namespace {

struct Shown {
  std::string text;
  bool found = false;
  bool operator==(const Shown&) const = default;
};

Shown Feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Shown shown;
  for (const std::string& piece : pieces) shown.text += matcher.Push(piece);
  shown.text += matcher.Finish();
  shown.found = matcher.found();
  return shown;
}

TEST(StopMatcherTest, WithoutStopsEverythingPasses) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_EQ(matcher.Finish(), "");
  EXPECT_FALSE(matcher.found());
}

TEST(StopMatcherTest, EndsBeforeTheStopAcrossPieces) {
  EXPECT_EQ(Feed({"STOP"}, {"one S", "TO", "P two"}), (Shown{"one ", true}));
  EXPECT_EQ(Feed({"STOP"}, {"STOP"}), (Shown{"", true}));
}

TEST(StopMatcherTest, NothingIsEatenWhenItIsNone) {
  EXPECT_EQ(Feed({"STOP"}, {"one STO", "NE"}), (Shown{"one STONE", false}));
  EXPECT_EQ(Feed({"STOP"}, {"one STO"}), (Shown{"one STO", false}));
  EXPECT_EQ(Feed({"aab"}, {"a", "a", "a", "b"}), (Shown{"a", true}));
  EXPECT_EQ(Feed({"abac"}, {"ababac"}), (Shown{"ab", true}));
}

TEST(StopMatcherTest, HoldsBackNoMoreThanItMust) {
  StopMatcher matcher({"ab", "cd"});
  EXPECT_EQ(matcher.Push("xa"), "x");
  EXPECT_EQ(matcher.Push("c"), "a");
  EXPECT_EQ(matcher.Push("x"), "cx");
}

TEST(StopMatcherTest, TheFirstCompleteOneCounts) {
  EXPECT_EQ(Feed({"abcd", "bc"}, {"abcd"}), (Shown{"a", true}));
  EXPECT_EQ(Feed({"b", "ab"}, {"ab"}), (Shown{"", true}));  // of two that end there, the longest
  EXPECT_EQ(Feed({"\n\n", "\n"}, {"x\n\n"}), (Shown{"x", true}));
}

TEST(StopMatcherTest, NothingComesAfterIt) {
  StopMatcher matcher({"."});
  EXPECT_EQ(matcher.Push("a.b"), "a");
  EXPECT_EQ(matcher.Push("c."), "");
  EXPECT_EQ(matcher.Finish(), "");
}

// What a search byte by byte says.
Shown Reference(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopMatcherTest, ThePiecesDoNotMatter) {
  std::mt19937 random(1);
  const auto word = [&](size_t longest) {
    std::string text(1 + random() % longest, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 1 + random() % 3; i > 0; --i) stops.push_back(word(5));
    const std::string text = word(12);
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size();) {
      const size_t length = 1 + random() % 4;
      pieces.push_back(text.substr(i, length));
      i += length;
    }
    ASSERT_EQ(Feed(stops, pieces), Reference(stops, text))
        << text << " " << testing::PrintToString(stops);
  }
}

}  // namespace
}  // namespace deltafin
