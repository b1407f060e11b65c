// std::format, from fmt for a standard library that does not have it yet. The only place that
// includes fmt.
#pragma once

#include <version>

#if defined(__cpp_lib_format)
#include <format>
#else
#include <fmt/format.h>
#endif

namespace deltafin {
// Not fmt's where there is std's: an argument's namespace would find that one too.
#if defined(__cpp_lib_format)
using std::format;  // NOLINT(misc-unused-using-decls)
#else
using fmt::format;  // NOLINT(misc-unused-using-decls)
#endif
}  // namespace deltafin
