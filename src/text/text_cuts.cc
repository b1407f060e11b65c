#include "text/text_cuts.h"

#include "text/unicode_classes.h"
#include "text/utf8.h"

namespace deltafin {
namespace {

// str.isspace(): White_Space and the four information separators.
bool IsPythonSpace(const UnicodeClasses& classes, char32_t c) {
  return (classes[c] & kSpace) != 0 || (c >= 0x1c && c <= 0x1f);
}

}  // namespace

std::vector<std::string_view> CutText(std::string_view text) {
  if (text.empty()) return {};
  if (text.size() <= kMaxRunCodePoints) return {text};
  const UnicodeClasses& classes = UnicodeClasses::Get();
  std::vector<std::string_view> cuts;
  size_t start = 0;         // of the current cut, in bytes
  size_t piece_length = 0;  // code points since the last cut at kMaxPieceCodePoints
  size_t run_length = 0;    // code points of the current run
  bool run_is_space = false;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = NextValidUtf8(text, pos);
    const bool is_space = IsPythonSpace(classes, step.code_point);
    const bool piece_full = piece_length == kMaxPieceCodePoints;
    const bool run_full = is_space == run_is_space && run_length == kMaxRunCodePoints;
    if (piece_full || run_full) {
      cuts.push_back(text.substr(start, pos - start));
      start = pos;
    }
    if (piece_full) piece_length = 0;
    if (piece_full || run_full || is_space != run_is_space) run_length = 0;
    run_is_space = is_space;
    ++piece_length;
    ++run_length;
    pos += step.length;
  }
  cuts.push_back(text.substr(start));
  return cuts;
}

}  // namespace deltafin
