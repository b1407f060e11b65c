// The character classes that the pre-tokeniser distinguishes (spec 6.2), for Unicode 16.0, which is
// what the released tokenizer's regular expressions use.
#pragma once

#include <cstdint>
#include <vector>

namespace deltafin {

using CharClass = uint8_t;  // a set of the bits below

inline constexpr CharClass kHan = 1;      // Script=Han
inline constexpr CharClass kUpper = 2;    // Lu, Lt, Lm, Lo and M that are not Han
inline constexpr CharClass kLower = 4;    // Ll, Lm, Lo and M that are not Han
inline constexpr CharClass kLetter = 8;   // L
inline constexpr CharClass kNumber = 16;  // N
inline constexpr CharClass kSpace = 32;   // White_Space

class UnicodeClasses {
 public:
  // The one table (1.1 MB), built on first use. Thread-safe.
  static const UnicodeClasses& Get();

  // REQUIRES: code_point <= 0x10FFFF.
  CharClass operator[](char32_t code_point) const { return classes_[code_point]; }

 private:
  UnicodeClasses();

  std::vector<CharClass> classes_;
};

}  // namespace deltafin
