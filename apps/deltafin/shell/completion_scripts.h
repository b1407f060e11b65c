// Scripts by which shells complete the program's commands and options.
#pragma once

#include <string>

#include "command_tree.h"

namespace deltafin {

std::string BashCompletion(const CommandEntry& program);
std::string ZshCompletion(const CommandEntry& program);
std::string FishCompletion(const CommandEntry& program);

}  // namespace deltafin
