// The cuts that the release makes before anything else (spec 6.3). They change ids, so they are
// part of the format.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace deltafin {

inline constexpr size_t kMaxPieceCodePoints = 400'000;
// Longest run of whitespace or of anything else.
inline constexpr size_t kMaxRunCodePoints = 25'000;

// Pieces of at most kMaxPieceCodePoints, cut again wherever a run of the same kind (whitespace as
// python's str.isspace() or not) would exceed kMaxRunCodePoints; the concatenation is `text`. Empty
// text has no pieces. REQUIRES: valid UTF-8.
std::vector<std::string_view> CutText(std::string_view text);

}  // namespace deltafin
