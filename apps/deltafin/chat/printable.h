// Text of a model on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace deltafin {

// Control characters except line ends and tabs become U+FFFD: an answer must not move the cursor,
// change the title or send keys. `text` is UTF-8, whole characters.
std::string Printable(std::string_view text);

}  // namespace deltafin
