#include "command_tree.h"

namespace deltafin {
namespace {

// CLI11 spells the members of a set as "{a,b,c}" in the type's name.
std::vector<std::string> ChoicesOf(const std::string& type) {
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

// "TEXT:INT in [1 - 1024]" says what CLI11 checks; people want the first word.
std::string ValueName(const std::string& type) { return type.substr(0, type.find_first_of(" :{")); }

OptionEntry ReadOption(const CLI::Option& option) {
  OptionEntry entry;
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  if (option.get_positional()) entry.positional = option.get_name(true, false);
  if (option.get_expected_max() > 0 && option.get_type_size_max() > 0) {
    const std::string type = option.get_type_name();
    entry.choices = ChoicesOf(type);
    entry.value = ValueName(type);
    if (entry.value.empty()) entry.value = entry.choices.empty() ? "VALUE" : "NAME";
  }
  entry.help = option.get_description();
  entry.group = option.get_group();
  return entry;
}

}  // namespace

CommandEntry ReadCommandTree(const CLI::App& app) {
  CommandEntry entry;
  entry.name = app.get_name();
  entry.help = app.get_description();
  entry.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) entry.options.push_back(ReadOption(*option));
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    entry.commands.push_back(ReadCommandTree(*command));
  }
  return entry;
}

}  // namespace deltafin
