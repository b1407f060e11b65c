#include "text/utf8.h"

#include <gtest/gtest.h>

#include "deltafin/tokenizer.h"
#include "text/text_test_util.h"

namespace deltafin {
namespace {

TEST(Utf8, EveryScalarValueIsValidAndRoundTrips) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::string text;
    AppendUtf8(c, text);
    const Utf8Step step = NextUtf8(text, 0);
    ASSERT_EQ(step.status, Utf8Status::kValid) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.length, text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const Utf8Step part = NextUtf8(std::string_view(text).substr(0, cut), 0);
      ASSERT_EQ(part.status, Utf8Status::kTruncated);
      ASSERT_EQ(part.length, cut);
    }
  }
}

// The examples of the Unicode standard, tables 3-8 to 3-11: U+FFFD per maximal subpart.
TEST(Utf8, ReplacesEachMaximalBadSequence) {
  const std::string r(kReplacementCharacter);
  const auto repeat = [&](int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += r;
    return out;
  };
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), repeat(8) + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), repeat(8) + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            repeat(5) + "A" + repeat(2) + "B");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), repeat(4) + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE4\xBD"), r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98"), r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xF5\x80"), repeat(2));
}

TEST(Utf8, ValidityAgreesWithReplacement) {
  RandomText random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text = random.Of(U"abcdefgh\u00e9\u4f60\U0001f600", random.Below(12));
    if (round % 2 == 0) text.insert(random.Below(text.size() + 1), random.Bytes(1));
    const std::string replaced = ReplaceInvalidUtf8(text);
    ASSERT_EQ(IsValidUtf8(text), replaced == text);
    ASSERT_TRUE(IsValidUtf8(replaced));
  }
}

// Cutting a text into pieces must not change what comes out, valid or not, and no piece of the
// output may hold half a character.
TEST(StreamDecoder, EverySplitGivesTheSameText) {
  const std::vector<std::string> texts = {
      "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80z",
      "\xF0\x9F\x98",
      "\xE4\xBDx\xF0\x9F\xE4\xBD\xA0\xC3",
      "\xED\xA0\x80\xFF\xC0\xAF\xF4\x90",
  };
  for (const std::string& text : texts) {
    ASSERT_LE(text.size(), 16u);
    for (uint32_t cuts = 0; cuts < 1u << (text.size() - 1); ++cuts) {
      StreamDecoder decoder;
      std::string out;
      size_t start = 0;
      for (size_t i = 1; i <= text.size(); ++i) {
        if (i < text.size() && (cuts >> (i - 1) & 1) == 0) continue;
        const std::string shown = decoder.Push(std::string_view(text).substr(start, i - start));
        ASSERT_TRUE(IsValidUtf8(shown));
        out += shown;
        start = i;
      }
      out += decoder.Finish();
      ASSERT_EQ(out, ReplaceInvalidUtf8(text)) << "cuts " << cuts;
    }
  }
}

TEST(StreamDecoder, ShowsACharacterAsSoonAsItIsComplete) {
  StreamDecoder decoder;
  EXPECT_EQ(decoder.Push("ab\xF0\x9F"), "ab");
  EXPECT_EQ(decoder.Push("\x98"), "");
  EXPECT_EQ(decoder.Push("\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(decoder.Push("\xE4"), "");
  // The bad sequence ends where the next character begins.
  EXPECT_EQ(decoder.Push("x"), std::string(kReplacementCharacter) + "x");
  EXPECT_EQ(decoder.Push("\xC3"), "");
  EXPECT_EQ(decoder.Finish(), kReplacementCharacter);
  EXPECT_EQ(decoder.Finish(), "");
  EXPECT_EQ(decoder.Push("new"), "new");
}

}  // namespace
}  // namespace deltafin
