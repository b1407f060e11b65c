#include "text/pretokenizer.h"

#include <gtest/gtest.h>
#include <unicode/regex.h>
#include <unicode/uchar.h>
#include <unicode/uscript.h>
#include <unicode/uversion.h>

#include <memory>
#include <string>
#include <vector>

#include "text/text_test_util.h"

namespace deltafin {
namespace {

using Pieces = std::vector<std::string>;

Pieces Split(std::string_view text) {
  const PreTokenizer pre_tokenizer;
  Pieces pieces;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pre_tokenizer.PieceEnd(text, pos);
    pieces.emplace_back(text.substr(pos, end - pos));
    pos = end;
  }
  return pieces;
}

// The pattern of spec 6.2, unchanged, in ICU's engine.
class IcuPreTokenizer {
 public:
  IcuPreTokenizer() {
    const std::string pattern =
        R"([\p{Han}]+)"
        R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
        R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
        R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    UErrorCode status = U_ZERO_ERROR;
    matcher_ =
        std::make_unique<icu::RegexMatcher>(icu::UnicodeString::fromUTF8(pattern), 0, status);
    EXPECT_TRUE(U_SUCCESS(status)) << u_errorName(status);
  }

  Pieces Split(const std::string& text) {
    const icu::UnicodeString utf16 = icu::UnicodeString::fromUTF8(text);
    matcher_->reset(utf16);
    Pieces pieces;
    UErrorCode status = U_ZERO_ERROR;
    while (matcher_->find(status)) matcher_->group(status).toUTF8String(pieces.emplace_back());
    EXPECT_TRUE(U_SUCCESS(status)) << u_errorName(status);
    return pieces;
  }

 private:
  std::unique_ptr<icu::RegexMatcher> matcher_;
};

// Every code point that this ICU knows has the same classes there. (Ours are Unicode 16; a code
// point that ICU's Unicode does not assign yet cannot be compared.)
TEST(UnicodeClasses, AgreeWithIcu) {
  const UnicodeClasses& classes = UnicodeClasses::Get();
  int num_compared = 0;
  for (UChar32 c = 0; c <= 0x10ffff; ++c) {
    const uint32_t type = U_GET_GC_MASK(c);
    if ((type & U_GC_CN_MASK) != 0 || (type & U_GC_CS_MASK) != 0) continue;
    UErrorCode status = U_ZERO_ERROR;
    const bool han = uscript_getScript(c, &status) == USCRIPT_HAN;
    CharClass expected = 0;
    if (han) expected |= kHan;
    constexpr uint32_t kUncased = U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK;
    if (!han && (type & (U_GC_LU_MASK | U_GC_LT_MASK | kUncased)) != 0) expected |= kUpper;
    if (!han && (type & (U_GC_LL_MASK | kUncased)) != 0) expected |= kLower;
    if ((type & U_GC_L_MASK) != 0) expected |= kLetter;
    if ((type & U_GC_N_MASK) != 0) expected |= kNumber;
    if (u_hasBinaryProperty(c, UCHAR_WHITE_SPACE)) expected |= kSpace;
    ASSERT_EQ(classes[static_cast<char32_t>(c)], expected)
        << "U+" << std::hex << c << ", ICU has Unicode " << U_UNICODE_VERSION;
    ++num_compared;
  }
  EXPECT_GT(num_compared, 280000);
}

// Newer than the Unicode versions of PCRE2 10.42 (14) and ICU 72 (15): with those tables the ids of
// such text differ from the release's.
TEST(UnicodeClasses, AreUnicode16) {
  const UnicodeClasses& classes = UnicodeClasses::Get();
  EXPECT_EQ(classes[0x31350], kHan | kLetter);             // 15.0, CJK extension H
  EXPECT_EQ(classes[0x2ebf0], kHan | kLetter);             // 15.1, CJK extension I
  EXPECT_EQ(classes[0x10d50], kUpper | kLetter);           // 16.0, Garay capital letter
  EXPECT_EQ(classes[0x10d40], kNumber);                    // 16.0, Garay digit
  EXPECT_EQ(classes[0x1c8a], kLower | kLetter);            // 16.0, Cyrillic small letter
  EXPECT_EQ(classes[0x16d40], kUpper | kLower | kLetter);  // 16.0, Kirat Rai sign
  EXPECT_EQ(classes[0x10ffff], 0);
}

TEST(PreTokenizer, Words) {
  EXPECT_EQ(Split("Hello, world!"), (Pieces{"Hello", ",", " world", "!"}));
  EXPECT_EQ(Split("HTTPServer camelCase"), (Pieces{"HTTPServer", " camel", "Case"}));
  EXPECT_EQ(Split("I'M we're they'LL"), (Pieces{"I'M", " we're", " they'LL"}));
  EXPECT_EQ(Split("x'\u017F y'x"), (Pieces{"x'\u017F", " y", "'x"}));
  EXPECT_EQ(Split("a'"), (Pieces{"a", "'"}));
  EXPECT_EQ(Split("a'r"), (Pieces{"a", "'r"}));
}

// A mark may be the prefix of a word and its first letter; the backtracking order decides.
TEST(PreTokenizer, MarksAndUncasedLetters) {
  EXPECT_EQ(Split("\u0301abc"), (Pieces{"\u0301abc"}));
  EXPECT_EQ(Split("\u0301ABC"), (Pieces{"\u0301", "ABC"}));
  EXPECT_EQ(Split("!\u0301ABC"), (Pieces{"!\u0301", "ABC"}));
  EXPECT_EQ(Split("A\u02b0BCd"), (Pieces{"A\u02b0BCd"}));
  EXPECT_EQ(Split("A\u02b0BC"), (Pieces{"A\u02b0", "BC"}));
}

TEST(PreTokenizer, HanNumbersPunctuation) {
  EXPECT_EQ(Split("你好abc漢字"), (Pieces{"你好", "abc", "漢字"}));
  EXPECT_EQ(Split("1234567"), (Pieces{"123", "456", "7"}));
  EXPECT_EQ(Split("a ... \r\n\nb"), (Pieces{"a", " ...", " \r\n\n", "b"}));
  EXPECT_EQ(Split("//\r\n\r\nx"), (Pieces{"//\r\n\r\n", "x"}));
  EXPECT_EQ(Split("!⺀a"), (Pieces{"!⺀", "a"}));  // a radical is Han, and a symbol
}

TEST(PreTokenizer, Spaces) {
  EXPECT_EQ(Split("a   b"), (Pieces{"a", "  ", " b"}));
  EXPECT_EQ(Split("a  \n  b"), (Pieces{"a", "  \n", " ", " b"}));
  EXPECT_EQ(Split("a \t"), (Pieces{"a", " \t"}));
  EXPECT_EQ(Split(" 1"), (Pieces{" ", "1"}));
  EXPECT_EQ(Split("\u00a0\u2028\u3000x"), (Pieces{"\u00a0\u2028", "\u3000x"}));
  // U+001C is no \s here, although the cuts count it as space.
  EXPECT_EQ(Split(" \x1c"), (Pieces{" \x1c"}));
}

// Characters on which the alternatives disagree: all classes, both newlines, each letter of the
// suffixes in both cases and the long s, marks (also the two that are Han), Han that is no letter
// (〇, 々, a radical), spaces that are newlines for some engines.
constexpr std::u32string_view kNasty =
    U"aAbBsStTrReEvVmMlLdD'''' "
    U"\n\r\t\v\f\x85\xa0\u1680\u2028\u3000019\u00b2\u0660\u2167!.-_/\x1c\x1f"
    U"\u0301\u0300\u20dd\u093e\u02b0\u01c5\u00aa\u05d0\u0644\u3042\u017f\u212a\u00df\u0130"
    U"\u4f60\u597d\u6f22\u3007\u3005\u2e80\u3021\U00016ff0\U00020000\u200b\u200d\U0001f600\ufffd"
    U"\ufeff";

void ExpectSameAsIcu(IcuPreTokenizer& icu, const std::string& text) {
  ASSERT_EQ(Split(text), icu.Split(text)) << testing::PrintToString(text);
}

TEST(PreTokenizer, AgreesWithIcuOnNastyText) {
  IcuPreTokenizer icu;
  RandomText random(3);
  for (int round = 0; round < 100000; ++round) {
    // A few different characters at a time make runs and near misses.
    std::u32string alphabet;
    for (size_t i = 0; i < 2 + random.Below(6); ++i)
      alphabet += kNasty[random.Below(kNasty.size())];
    ExpectSameAsIcu(icu, random.Of(alphabet, random.Below(24)));
    ASSERT_FALSE(HasFatalFailure());
  }
  for (int round = 0; round < 20000; ++round) {
    ExpectSameAsIcu(icu, random.Of(kNasty, random.Below(80)));
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST(PreTokenizer, AgreesWithIcuOnAnyCharacters) {
  IcuPreTokenizer icu;
  RandomText random(4);
  for (int round = 0; round < 50000; ++round) {
    std::u32string alphabet;
    while (alphabet.size() < 5) {
      // Mostly below U+3000, where the small scripts are.
      const char32_t c =
          random.Below(4) == 0 ? random.AnyScalar() : static_cast<char32_t>(random.Below(0x3000));
      if (u_charType(static_cast<UChar32>(c)) != U_UNASSIGNED) alphabet += c;
    }
    ExpectSameAsIcu(icu, random.Of(alphabet + U" '\n", random.Below(20)));
    ASSERT_FALSE(HasFatalFailure());
  }
}

// All texts of up to four characters over one representative of each class.
TEST(PreTokenizer, AgreesWithIcuOnAllShortTexts) {
  IcuPreTokenizer icu;
  const std::u32string alphabet = U"aA\u0301\u02b0\u01c5\u4f60\u30071! \n\t's\u2e80";
  for (size_t length = 1; length <= 4; ++length) {
    std::vector<size_t> digits(length, 0);
    for (;;) {
      std::u32string text;
      for (const size_t digit : digits) text += alphabet[digit];
      ExpectSameAsIcu(icu, ToUtf8(text));
      ASSERT_FALSE(HasFatalFailure());
      size_t i = 0;
      while (i < length && ++digits[i] == alphabet.size()) digits[i++] = 0;
      if (i == length) break;
    }
  }
}

}  // namespace
}  // namespace deltafin
