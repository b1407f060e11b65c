#include "text/pretokenizer.h"

#include "base/check.h"
#include "text/utf8.h"

namespace deltafin {
namespace {

char AsciiLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// (?i:'s|'t|'re|'ve|'m|'ll|'d)? at `pos`. Case folding also makes U+017F (long s) an s; none of the
// other letters has a relative outside ASCII.
size_t SuffixEnd(std::string_view text, size_t pos) {
  if (pos + 1 >= text.size() || text[pos] != '\'') return pos;
  const char first = AsciiLower(text[pos + 1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return pos + 2;
  if (pos + 2 >= text.size()) return pos;
  const char second = AsciiLower(text[pos + 2]);
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
      (first == 'l' && second == 'l') || text.substr(pos + 1, 2) == "\xC5\xBF") {
    return pos + 3;
  }
  return pos;
}

size_t NewlinesEnd(std::string_view text, size_t pos) {
  while (pos < text.size() && (text[pos] == '\r' || text[pos] == '\n')) ++pos;
  return pos;
}

}  // namespace

PreTokenizer::Char PreTokenizer::At(std::string_view text, size_t pos) const {
  if (pos >= text.size()) return {};
  const Utf8Step step = NextValidUtf8(text, pos);
  return {classes_[step.code_point], pos + step.length,
          step.code_point == '\r' || step.code_point == '\n'};
}

size_t PreTokenizer::RunEnd(std::string_view text, size_t pos, CharClass any_of) const {
  while (pos < text.size()) {
    const Utf8Step step = NextValidUtf8(text, pos);
    if ((classes_[step.code_point] & any_of) == 0) break;
    pos += step.length;
  }
  return pos;
}

// [UPPER]*[LOWER]+ and, if that fails, [UPPER]+[LOWER]*. Characters of both classes (Lm, Lo, M)
// make the greedy [UPPER]* give back: when no LOWER follows the run, the match ends after the run's
// last character that is LOWER too.
PreTokenizer::WordEnds PreTokenizer::MatchWord(std::string_view text, size_t pos) const {
  WordEnds ends;
  size_t run_end = pos;
  while (run_end < text.size()) {
    const Utf8Step step = NextValidUtf8(text, run_end);
    const CharClass classes = classes_[step.code_point];
    if ((classes & kUpper) == 0) {
      if ((classes & kLower) != 0) {
        ends.with_lower = RunEnd(text, run_end + step.length, kLower);
        return ends;
      }
      break;
    }
    run_end += step.length;
    if ((classes & kLower) != 0) ends.with_lower = run_end;
  }
  if (run_end > pos) ends.upper_only = run_end;
  return ends;
}

// The two word alternatives in the order in which backtracking tries them: each first with the
// prefix character, then without it (a mark can be either). 0: no match.
size_t PreTokenizer::WordEnd(std::string_view text, size_t pos, const Char& first) const {
  WordEnds prefixed;
  if ((first.classes & (kLetter | kNumber)) == 0 && !first.newline) {
    prefixed = MatchWord(text, first.end);
    if (prefixed.with_lower != 0) return SuffixEnd(text, prefixed.with_lower);
  }
  WordEnds bare;
  if ((first.classes & (kUpper | kLower)) != 0) bare = MatchWord(text, pos);
  for (const size_t end : {bare.with_lower, prefixed.upper_only, bare.upper_only}) {
    if (end != 0) return SuffixEnd(text, end);
  }
  return 0;
}

// [^\s\p{L}\p{N}]+[\r\n]*; `pos` itself when nothing matches.
size_t PreTokenizer::PunctuationEnd(std::string_view text, size_t pos) const {
  size_t end = pos;
  while (end < text.size()) {
    const Utf8Step step = NextValidUtf8(text, end);
    if ((classes_[step.code_point] & (kSpace | kLetter | kNumber)) != 0) break;
    end += step.length;
  }
  return end == pos ? pos : NewlinesEnd(text, end);
}

// \s*[\r\n]+, \s+(?!\S), \s+ : up to the last line end of the run; without one all of the run, but
// its last character stays for what follows.
size_t PreTokenizer::SpaceEnd(std::string_view text, size_t pos) const {
  size_t newline_end = 0;
  size_t last_start = pos;
  size_t end = pos;
  for (Char c = At(text, pos); c.end != 0 && (c.classes & kSpace) != 0; c = At(text, end)) {
    last_start = end;
    end = c.end;
    if (c.newline) newline_end = end;
  }
  if (newline_end != 0) return newline_end;
  return end == text.size() || last_start == pos ? end : last_start;
}

size_t PreTokenizer::PieceEnd(std::string_view text, size_t pos) const {
  const Char first = At(text, pos);
  if ((first.classes & kHan) != 0) return RunEnd(text, first.end, kHan);
  if (const size_t end = WordEnd(text, pos, first); end != 0) return end;
  if ((first.classes & kNumber) != 0) {
    size_t end = first.end;
    for (int i = 1; i < 3; ++i) {
      const Char c = At(text, end);
      if ((c.classes & kNumber) == 0) break;
      end = c.end;
    }
    return end;
  }
  const size_t start = text[pos] == ' ' ? first.end : pos;
  if (const size_t end = PunctuationEnd(text, start); end != start) return end;
  const size_t end = SpaceEnd(text, pos);
  DF_CHECK(end > pos);  // letters, numbers, spaces and the rest are all covered above
  return end;
}

}  // namespace deltafin
