// Token ids as a person writes them.
#pragma once

#include <string>
#include <vector>

#include "deltafin/types.h"

namespace deltafin {

// Numbers separated by spaces, commas or newlines; the brackets of a JSON array are fine too.
// Throws Error(kInvalidArgument).
std::vector<TokenId> ParseTokenIds(const std::string& text);

}  // namespace deltafin
