// The commands and options of the program as plain data, read from the parser itself: what is
// written from it (completions, the man page) cannot name an option that is not there.
#pragma once

#include <string>
#include <vector>

#include "../command_line.h"

namespace deltafin {

struct OptionEntry {
  std::vector<std::string> names;  // with dashes, long ones first; empty for a positional
  std::string positional;          // "": an option with dashes
  std::string value;               // DIR, FILE, N, ...; "": takes none
  std::vector<std::string> choices;
  std::string help;
  std::string group;
};

struct CommandEntry {
  std::string name;
  std::string help;
  std::string footer;
  std::vector<OptionEntry> options;
  std::vector<CommandEntry> commands;
};

CommandEntry ReadCommandTree(const CLI::App& app);

}  // namespace deltafin
