// std::format for a compiler that does not have it yet. The only place that includes fmt.
#pragma once

#include <fmt/format.h>

namespace deltafin {
using fmt::format;  // NOLINT(misc-unused-using-decls)
}  // namespace deltafin
