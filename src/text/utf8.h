// UTF-8 by the Unicode standard's table 3-7: what is one character, what is bad, what is
// unfinished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deltafin {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Status : uint8_t {
  kValid,      // a character
  kInvalid,    // a maximal bad sequence: no continuation can repair it
  kTruncated,  // the text ends inside a character that is good so far
};

struct Utf8Step {
  char32_t code_point = 0;  // of a valid character
  size_t length = 0;        // bytes; at least 1
  Utf8Status status = Utf8Status::kInvalid;
};

// What stands at `pos`. REQUIRES: pos < text.size().
Utf8Step NextUtf8(std::string_view text, size_t pos);

// The same for text known to be valid, without checks.
inline Utf8Step NextValidUtf8(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  const char32_t lead = byte(pos);
  if (lead < 0x80) return {lead, 1, Utf8Status::kValid};
  const char32_t low1 = byte(pos + 1) & 0x3f;
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | low1, 2, Utf8Status::kValid};
  const char32_t low2 = byte(pos + 2) & 0x3f;
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | low1 << 6 | low2, 3, Utf8Status::kValid};
  const char32_t low3 = byte(pos + 3) & 0x3f;
  return {(lead & 0x07) << 18 | low1 << 12 | low2 << 6 | low3, 4, Utf8Status::kValid};
}

bool IsValidUtf8(std::string_view text);

// Each maximal bad sequence, and an unfinished character at the end, becomes one U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace deltafin
