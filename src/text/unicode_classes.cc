#include "text/unicode_classes.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace deltafin {
namespace {

constexpr size_t kNumCodePoints = 0x110000;

struct ClassRange {
  uint32_t first;
  CharClass classes;
};

constexpr ClassRange kRanges[] = {
#include "text/unicode_ranges.inc"
};

}  // namespace

UnicodeClasses::UnicodeClasses() : classes_(kNumCodePoints) {
  for (size_t i = 0; i < std::size(kRanges); ++i) {
    const size_t end = i + 1 < std::size(kRanges) ? kRanges[i + 1].first : kNumCodePoints;
    std::fill(classes_.begin() + kRanges[i].first, classes_.begin() + static_cast<ptrdiff_t>(end),
              kRanges[i].classes);
  }
}

const UnicodeClasses& UnicodeClasses::Get() {
  static const UnicodeClasses classes;
  return classes;
}

}  // namespace deltafin
