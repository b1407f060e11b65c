// deltafin(1), from the commands and options of the program.
#pragma once

#include <string>

#include "command_tree.h"

namespace deltafin {

// In the man macros of troff.
std::string ManPage(const CommandEntry& program, const std::string& version);

}  // namespace deltafin
