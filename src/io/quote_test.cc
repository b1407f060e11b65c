#include "io/quote.h"

#include <gtest/gtest.h>

namespace deltafin {
namespace {

TEST(Quote, LeavesPlainNamesAlone) {
  EXPECT_EQ(Quote("model.layers.0.w1"), "\"model.layers.0.w1\"");
  EXPECT_EQ(Escape("a \"b\""), "a \"b\"");
}

TEST(Quote, EscapesWhatWouldBreakATerminal) {
  EXPECT_EQ(Quote("a\"b\\c\n\x1b[31m\xff"), R"("a\"b\\c\n\x1B[31m\xFF")");
  EXPECT_EQ(Escape(std::string_view("\0\t\x7f", 3)), R"(\x00\t\x7F)");
}

TEST(Quote, CutsLongText) {
  EXPECT_EQ(Quote("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(Escape("abc", 3), "abc");
}

}  // namespace
}  // namespace deltafin
