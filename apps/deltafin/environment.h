// Environment names that set defaults of flags (docs/configuration.md).
#pragma once

#include <string>
#include <vector>

namespace deltafin {

// One line for each variable that is set and has no effect in this version, for stderr.
std::vector<std::string> EnvironmentNotices();

// The value of a variable, "" when unset.
std::string Environment(const char* name);

}  // namespace deltafin
