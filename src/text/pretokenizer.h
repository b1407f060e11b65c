// Splits text into the pieces that are merged one by one: the release's regular expression (spec
// 6.2) as a hand-written matcher, linear in the text, without backtracking limits.
//
//   [\p{Han}]+
//   |[^\r\n\p{L}\p{N}]?[UPPER]*[LOWER]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   |[^\r\n\p{L}\p{N}]?[UPPER]+[LOWER]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   |\p{N}{1,3}
//   | ?[^\s\p{L}\p{N}]+[\r\n]*
//   |\s*[\r\n]+
//   |\s+(?!\S)
//   |\s+
//
// UPPER and LOWER are the classes kUpper and kLower of text/unicode_classes.h.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/unicode_classes.h"

namespace deltafin {

// Immutable, thread-safe.
class PreTokenizer {
 public:
  PreTokenizer() : classes_(UnicodeClasses::Get()) {}

  // Where the piece that begins at `pos` ends; greater than `pos`. The text's end counts for the
  // lookahead. REQUIRES: valid UTF-8, pos < text.size() at the start of a character.
  size_t PieceEnd(std::string_view text, size_t pos) const;

 private:
  struct Char {
    CharClass classes = 0;
    size_t end = 0;  // 0: no character, the text ended
    bool newline = false;
  };
  // Ends of the two word alternatives without their prefix and suffix; 0: no match.
  struct WordEnds {
    size_t with_lower = 0;
    size_t upper_only = 0;
  };

  Char At(std::string_view text, size_t pos) const;
  // The end of the longest run of characters from `pos` on that have one of the bits.
  size_t RunEnd(std::string_view text, size_t pos, CharClass any_of) const;
  WordEnds MatchWord(std::string_view text, size_t pos) const;
  size_t WordEnd(std::string_view text, size_t pos, const Char& first) const;
  size_t PunctuationEnd(std::string_view text, size_t pos) const;
  size_t SpaceEnd(std::string_view text, size_t pos) const;

  const UnicodeClasses& classes_;
};

}  // namespace deltafin
