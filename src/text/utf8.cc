#include "text/utf8.h"

#include <cstring>

namespace deltafin {
namespace {

// What may follow a lead byte: how many continuation bytes, and the range of the first of them (the
// others are 80..BF). Zero continuations: not a lead byte.
struct LeadByte {
  uint8_t num_continuations;
  uint8_t low;
  uint8_t high;
};

LeadByte Classify(uint8_t lead) {
  if (lead >= 0xc2 && lead <= 0xdf) return {1, 0x80, 0xbf};
  if (lead == 0xe0) return {2, 0xa0, 0xbf};
  if (lead == 0xed) return {2, 0x80, 0x9f};  // no surrogates
  if (lead >= 0xe1 && lead <= 0xef) return {2, 0x80, 0xbf};
  if (lead == 0xf0) return {3, 0x90, 0xbf};
  if (lead >= 0xf1 && lead <= 0xf3) return {3, 0x80, 0xbf};
  if (lead == 0xf4) return {3, 0x80, 0x8f};  // up to U+10FFFF
  return {0, 0, 0};
}

// Where the run of ASCII that starts at `pos` ends, to within 7 bytes.
size_t SkipAscii(std::string_view text, size_t pos) {
  while (pos + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + pos, 8);
    if ((word & 0x8080808080808080u) != 0) break;
    pos += 8;
  }
  return pos;
}

}  // namespace

Utf8Step NextUtf8(std::string_view text, size_t pos) {
  const auto lead = static_cast<uint8_t>(text[pos]);
  if (lead < 0x80) return {lead, 1, Utf8Status::kValid};
  const LeadByte rule = Classify(lead);
  if (rule.num_continuations == 0) return {0, 1, Utf8Status::kInvalid};
  uint8_t low = rule.low;
  uint8_t high = rule.high;
  for (size_t i = 1; i <= rule.num_continuations; ++i) {
    if (pos + i == text.size()) return {0, i, Utf8Status::kTruncated};
    const auto byte = static_cast<uint8_t>(text[pos + i]);
    if (byte < low || byte > high) return {0, i, Utf8Status::kInvalid};
    low = 0x80;
    high = 0xbf;
  }
  return NextValidUtf8(text, pos);
}

bool IsValidUtf8(std::string_view text) {
  for (size_t pos = SkipAscii(text, 0); pos < text.size(); pos = SkipAscii(text, pos)) {
    const Utf8Step step = NextUtf8(text, pos);
    if (step.status != Utf8Status::kValid) return false;
    pos += step.length;
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = NextUtf8(text, pos);
    out +=
        step.status == Utf8Status::kValid ? text.substr(pos, step.length) : kReplacementCharacter;
    pos += step.length;
  }
  return out;
}

}  // namespace deltafin
