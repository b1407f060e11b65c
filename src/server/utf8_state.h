// Whether bytes that come one by one are UTF-8.
#pragma once

#include <cstdint>

namespace deltafin {

// Where a character of several bytes stands (the Unicode standard's table 3-7). A value.
struct Utf8State {
  uint8_t left = 0;                 // bytes that must follow
  uint8_t low = 0x80, high = 0xbf;  // the next of them

  // False when no character goes on like that; nothing may be pushed afterwards.
  bool Push(uint8_t c) {
    if (left > 0) {
      if (c < low || c > high) return false;
      --left;
      low = 0x80, high = 0xbf;
      return true;
    }
    if (c < 0x80) return true;
    if (c < 0xc2 || c > 0xf4) return false;
    left = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    return true;
  }
  bool operator==(const Utf8State&) const = default;
};

}  // namespace deltafin
