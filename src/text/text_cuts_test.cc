#include "text/text_cuts.h"

#include <gtest/gtest.h>

#include <string>

#include "text/text_test_util.h"

namespace deltafin {
namespace {

using Lengths = std::vector<size_t>;

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xc0) != 0x80;
  return count;
}

Lengths CutLengths(const std::string& text) {
  Lengths lengths;
  std::string joined;
  for (const std::string_view cut : CutText(text)) {
    joined += cut;
    lengths.push_back(CountCodePoints(cut));
  }
  EXPECT_EQ(joined, text);
  return lengths;
}

std::string Repeat(std::u32string_view unit, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += ToUtf8(unit);
  return out;
}

// Spec 6.3 step 1 and 2, literally, over code points.
Lengths NaiveCutLengths(const std::u32string& text) {
  const std::u32string spaces =
      U"\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
      U"\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000";
  const auto is_space = [&](char32_t c) { return spaces.find(c) != std::u32string::npos; };
  Lengths lengths;
  for (size_t begin = 0; begin < text.size(); begin += 400000) {
    const std::u32string piece = text.substr(begin, 400000);
    size_t run = 0;
    bool run_is_space = is_space(piece[0]);
    size_t start = 0;
    for (size_t i = 0; i < piece.size(); ++i) {
      if (is_space(piece[i]) != run_is_space) {
        run = 1;
        run_is_space = !run_is_space;
      } else if (++run > 25000) {
        lengths.push_back(i - start);
        start = i;
        run = 1;
      }
    }
    lengths.push_back(piece.size() - start);
  }
  return lengths;
}

TEST(CutText, CutsLongRuns) {
  EXPECT_EQ(CutLengths(""), Lengths{});
  EXPECT_EQ(CutLengths("a"), Lengths{1});
  EXPECT_EQ(CutLengths(Repeat(U"a", 25000)), Lengths{25000});
  EXPECT_EQ(CutLengths(Repeat(U"a", 25001)), (Lengths{25000, 1}));
  EXPECT_EQ(CutLengths(Repeat(U" ", 50001)), (Lengths{25000, 25000, 1}));
  EXPECT_EQ(CutLengths(Repeat(U"a", 25000) + " " + Repeat(U"a", 25000)), Lengths{50001});
  EXPECT_EQ(CutLengths(Repeat(U"ab ", 20000)), Lengths{60000});
}

TEST(CutText, CountsCodePointsNotBytes) {
  EXPECT_EQ(CutLengths(Repeat(U"\u4f60", 25000)), Lengths{25000});
  EXPECT_EQ(CutLengths(Repeat(U"\U0001f600", 25001)), (Lengths{25000, 1}));
  EXPECT_EQ(CutLengths(Repeat(U"\u3000", 25001)), (Lengths{25000, 1}));
}

// U+001C..U+001F are whitespace for str.isspace() though not for \s.
TEST(CutText, InformationSeparatorsAreSpaces) {
  for (const char* separator : {"\x1c", "\x1d", "\x1e", "\x1f"}) {
    std::string text = Repeat(U"a", 25000);
    text += separator;
    text += Repeat(U"a", 25000);
    EXPECT_EQ(CutLengths(text), Lengths{50001});
  }
  EXPECT_EQ(CutLengths(Repeat(U"\x1c\x1d ", 10000)), (Lengths{25000, 5000}));
  EXPECT_EQ(CutLengths(Repeat(U"a", 25000) + "\x1b"), (Lengths{25000, 1}));
}

// The run counter starts again with each piece of 400,000.
TEST(CutText, CutsLongTexts) {
  EXPECT_EQ(CutLengths(Repeat(U"a ", 200000)), Lengths{400000});
  EXPECT_EQ(CutLengths(Repeat(U"\u00e9 ", 200001)), (Lengths{400000, 2}));
  EXPECT_EQ(CutLengths(Repeat(U"a ", 199995) + Repeat(U"b", 25010)), (Lengths{400000, 25000}));
}

TEST(CutText, AgreesWithTheLiteralRule) {
  RandomText random(2);
  const std::u32string alphabet = U"a\u00e9\u4f60 \n\x1c\x85\u2028\U0001f600\u200b\x1b";
  for (int round = 0; round < 30; ++round) {
    std::u32string text;
    const size_t length = random.Below(1'000'000);
    while (text.size() < length) {
      // Runs of one or two characters with lengths around the limit, and short ones.
      const size_t around = 24990 + random.Below(20);
      const size_t run = random.Below(3) == 0 ? random.Below(30) : around * (1 + random.Below(2));
      const char32_t c = alphabet[random.Below(alphabet.size())];
      const char32_t d = alphabet[random.Below(alphabet.size())];
      for (size_t i = 0; i < run; ++i) text += i % 7 == 0 ? d : c;
    }
    ASSERT_EQ(CutLengths(ToUtf8(text)), NaiveCutLengths(text)) << "round " << round;
  }
}

}  // namespace
}  // namespace deltafin
