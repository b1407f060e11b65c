// Random texts for the tests of this folder.
#pragma once

#include <random>
#include <span>
#include <string>
#include <string_view>

#include "text/utf8.h"

namespace deltafin {

// REQUIRES: a Unicode scalar value.
inline void AppendUtf8(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

inline std::string ToUtf8(std::u32string_view text) {
  std::string out;
  for (const char32_t c : text) AppendUtf8(c, out);
  return out;
}

class RandomText {
 public:
  explicit RandomText(uint32_t seed) : random_(seed) {}

  // 0 .. limit - 1.
  size_t Below(size_t limit) { return random_() % limit; }

  // `length` draws from the alphabet.
  std::string Of(std::u32string_view alphabet, size_t length) {
    std::string out;
    for (size_t i = 0; i < length; ++i) AppendUtf8(alphabet[Below(alphabet.size())], out);
    return out;
  }

  char32_t AnyScalar() {
    const auto c = static_cast<char32_t>(Below(0x110000 - 0x800));
    return c < 0xd800 ? c : c + 0x800;
  }

  // Any bytes; mostly not UTF-8.
  std::string Bytes(size_t length) {
    std::string out;
    for (size_t i = 0; i < length; ++i) out += static_cast<char>(Below(256));
    return out;
  }

 private:
  std::mt19937 random_;
};

}  // namespace deltafin
