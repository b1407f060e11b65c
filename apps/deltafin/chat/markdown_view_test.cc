#include "markdown_view.h"

#include <gtest/gtest.h>

#include "printable.h"

namespace deltafin {
namespace {

// Styles as letters: {b} bold, {i} italic, {c} code, {q} quote, {} none.
std::string Readable(std::string text) {
  const std::pair<const char*, const char*> names[] = {
      {"\033[0;1;3m", "{bi}"},  {"\033[0;1m", "{b}"}, {"\033[0;3m", "{i}"}, {"\033[0;36m", "{c}"},
      {"\033[0;1;36m", "{bc}"}, {"\033[0;2m", "{q}"}, {"\033[0m", "{}"}};
  for (const auto& [from, to] : names) {
    for (size_t at = 0; (at = text.find(from)) != std::string::npos;) {
      text.replace(at, std::string(from).size(), to);
    }
  }
  return text;
}

std::string Show(std::string_view text, size_t piece) {
  std::string shown;
  MarkdownView view([&](std::string_view more) { shown += more; });
  for (size_t at = 0; at < text.size(); at += piece) view.Push(text.substr(at, piece));
  view.Finish();
  return Readable(shown);
}

struct Case {
  const char* text;
  const char* shown;
};

class MarkdownViewTest : public testing::TestWithParam<Case> {};

TEST_P(MarkdownViewTest, ShowsTheSameHoweverItComes) {
  const auto& [text, shown] = GetParam();
  for (size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{1000}}) {
    EXPECT_EQ(Show(text, piece), shown) << "pieces of " << piece;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MarkdownViewTest,
    testing::Values(
        Case{"plain text", "plain text"}, Case{"", ""}, Case{"a\n\nb\n", "a\n\nb\n"},
        Case{"a **bold** b", "a {b}bold{} b"}, Case{"an *it* b", "an {i}it{} b"},
        Case{"***both*** x", "{bi}both{} x"}, Case{"**a *b* c**", "{b}a {bi}b{b} c{}"},
        Case{"2 * 3 * 4", "2 * 3 * 4"}, Case{"a*b*c", "a*b*c"}, Case{"a ** b", "a ** b"},
        Case{"****", "****"}, Case{"**never closed\nnext", "{b}never closed{}\nnext"},
        Case{"use `x * y` now", "use {c}x * y{} now"}, Case{"``a`b``", "{c}a`b{}"},
        Case{"**b `c`**", "{b}b {bc}c{b}{}"}, Case{"\\*no\\*", "*no*"}, Case{"\\(x\\)", "\\(x\\)"},
        Case{"end\\", "end\\"}, Case{"a\\\nb", "a\\\nb"}, Case{"# Title\ntext", "{b}Title{}\ntext"},
        Case{"#tag", "#tag"}, Case{"####### x", "####### x"},
        Case{"- a\n  * b\n+ c", "• a\n  • b\n• c"}, Case{"-5 and - 3", "-5 and - 3"},
        Case{"1. one\n2. two", "1. one\n2. two"}, Case{"* **a**: b", "• {b}a{}: b"},
        Case{"**a** b", "{b}a{} b"}, Case{"- ", "• "}, Case{"-", "-"},
        Case{"---\nx", "────────────────────────\nx"}, Case{"> said\nx", "{q}│ said{}\nx"},
        Case{"```python\na = `1`\n**\n```\nb", "{c}  a = `1`\n  **\n{}b"},
        Case{"```\nno end", "{c}  no end{}"}, Case{"```\nx\n```", "{c}  x\n{}"},
        Case{"~~~\n```\n~~~\n", "{c}  ```\n{}"}, Case{"````\n```\n````\n", "{c}  ```\n{}"},
        Case{"`` ` ``", "{c} ` {}"}, Case{"äöü **ß**", "äöü {b}ß{}"}));

TEST(MarkdownViewTest, WithinALineNothingWaits) {
  std::string shown;
  MarkdownView view([&](std::string_view more) { shown += more; });
  view.Push("Hello wo");
  EXPECT_EQ(shown, "Hello wo");
  view.Push("rld*");
  EXPECT_EQ(shown, "Hello world");
}

TEST(PrintableTest, ControlsCannotReachTheTerminal) {
  EXPECT_EQ(Printable("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(Printable("\033[2Jx"), "\xef\xbf\xbd[2Jx");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J\x7f\r"),
            "\xef\xbf\xbd"
            "2J\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(Printable("é\xc2\xa0"), "é\xc2\xa0");
}

}  // namespace
}  // namespace deltafin
