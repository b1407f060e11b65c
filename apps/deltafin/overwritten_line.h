// A line of a terminal that is written over until it is gone.
#pragma once

namespace deltafin {

// Around each of its versions. In between the terminal does not wrap: on a narrow one a line that
// does would leave its upper rows behind.
constexpr const char* kBeginOverwrite = "\r\033[K\033[?7l";
constexpr const char* kEndOverwrite = "\033[?7h";

}  // namespace deltafin
