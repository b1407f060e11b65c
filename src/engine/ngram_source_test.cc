#include "engine/ngram_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace deltafin {
namespace {

// The longest end of the text that occurs earlier in it (they may overlap), by comparing.
int64_t LongestRepeatedEnd(std::span<const TokenId> text) {
  int64_t longest = 0;
  for (int64_t end = std::ssize(text) - 2; end >= 0; --end) {
    int64_t length = 0;
    while (length <= end && text[end - length] == text[text.size() - 1 - length]) ++length;
    longest = std::max(longest, length);
  }
  return longest;
}

// Whether the text's last `match` tokens occur earlier, followed by the draft (which may run on
// into itself).
bool FollowsAnEarlierPlace(std::span<const TokenId> text, const Draft& draft) {
  std::vector<TokenId> all(text.begin(), text.end());
  all.insert(all.end(), draft.tokens.begin(), draft.tokens.end());
  const auto wanted = std::ssize(draft.tokens);
  for (int64_t end = std::ssize(text) - 2; end >= draft.match - 1; --end) {
    if (std::equal(text.end() - draft.match, text.end(), all.begin() + end + 1 - draft.match) &&
        std::equal(draft.tokens.begin(), draft.tokens.end(), all.begin() + end + 1,
                   all.begin() + end + 1 + wanted)) {
      return true;
    }
  }
  return false;
}

TEST(NgramSourceTest, FindsTheLongestRepetition) {
  std::minstd_rand random(1);
  for (TokenId alphabet : {1, 2, 3, 10, 200}) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      NgramSource source;
      std::vector<TokenId> text;
      while (text.size() < 150) {
        const size_t step = 1 + random() % 3;  // some tokens come without a question
        for (size_t i = 0; i < step; ++i) text.push_back(static_cast<TokenId>(random() % alphabet));
        const Draft draft = source.Propose(text, 4);
        ASSERT_EQ(draft.match, LongestRepeatedEnd(text));
        ASSERT_EQ(draft.tokens.size(), draft.match > 0 ? 4u : 0u);
        if (draft.match > 0) {
          ASSERT_TRUE(FollowsAnEarlierPlace(text, draft));
        }
        ASSERT_EQ(source.Propose(text, 4).tokens, draft.tokens);  // asking changes nothing
      }
    }
  }
}

TEST(NgramSourceTest, PrefersTheLatestPlace) {
  NgramSource source;
  const std::vector<TokenId> text = {1, 2, 3, 9, 1, 2, 4, 9, 8, 1, 2};
  const Draft draft = source.Propose(text, 3);
  EXPECT_EQ(draft.match, 2);
  EXPECT_EQ(draft.tokens, (std::vector<TokenId>{4, 9, 8}));
}

TEST(NgramSourceTest, APeriodGoesOn) {
  NgramSource source;
  const std::vector<TokenId> text = {7, 1, 2, 1, 2};
  EXPECT_EQ(source.Propose(text, 5).tokens, (std::vector<TokenId>{1, 2, 1, 2, 1}));
}

TEST(NgramSourceTest, ForgetsWhatIsOldAndAfterReset) {
  NgramSource source(64);
  std::vector<TokenId> text = {1000, 1001, 1002};
  for (TokenId i = 0; i < 100; ++i) {
    text.push_back(i);
    source.Propose(text, 1);
  }
  text.push_back(1000);
  EXPECT_EQ(source.Propose(text, 4).match, 0);
  text.push_back(98);
  EXPECT_EQ(source.Propose(text, 1).tokens, std::vector<TokenId>{99});
  source.Reset();
  EXPECT_EQ(source.Propose(std::vector<TokenId>{98}, 4).match, 0);
}

}  // namespace
}  // namespace deltafin
