// Text from files and requests, made safe to stand in a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deltafin {

// `text` with everything but printable ASCII as escapes (\n, \xFF), cut after about `max_bytes`
// bytes of input with "..." in place of the rest.
std::string Escape(std::string_view text, size_t max_bytes = 200);

// The same in double quotes; quotes and backslashes inside get a backslash.
std::string Quote(std::string_view text, size_t max_bytes = 200);

}  // namespace deltafin
