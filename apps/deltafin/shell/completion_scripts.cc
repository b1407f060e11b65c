#include "completion_scripts.h"

#include <functional>
#include <string_view>

namespace deltafin {
namespace {

using Visit = std::function<void(const CommandEntry& command, const std::string& path)>;

// The program has the path "", its commands "run", "sessions list", ...
void VisitAll(const CommandEntry& command, const std::string& path, const Visit& visit) {
  visit(command, path);
  for (const CommandEntry& sub : command.commands) {
    VisitAll(sub, path.empty() ? sub.name : path + " " + sub.name, visit);
  }
}

std::string Join(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += between;
    text += word;
  }
  return text;
}

std::vector<std::string> CommandNames(const CommandEntry& command) {
  std::vector<std::string> names;
  names.reserve(command.commands.size());
  for (const CommandEntry& sub : command.commands) names.push_back(sub.name);
  return names;
}

// In single quotes, for all three shells.
std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (char letter : text) {
    if (letter == '\'') {
      quoted += "'\\''";
    } else {
      quoted += letter == '\n' ? ' ' : letter;
    }
  }
  return quoted + "'";
}

bool IsFile(const OptionEntry& option) {
  return option.value == "FILE" || option.positional == "file" || option.positional == "folder";
}

// The first sentence is enough beside a list.
std::string Brief(const std::string& help) {
  std::string brief = help.substr(0, help.find_first_of("(;\n"));
  while (!brief.empty() && (brief.back() == ' ' || brief.back() == ':')) brief.pop_back();
  return brief;
}

// ---- bash ----

// What completes a value, as arguments of compgen; "": nothing.
std::string BashValues(const OptionEntry& option) {
  if (!option.choices.empty()) return "-W " + Quoted(Join(option.choices, " "));
  if (option.value == "DIR") return "-d";
  return IsFile(option) ? "-f" : "";
}

// ---- zsh ----

std::string ZshEscaped(std::string_view text) {
  std::string escaped;
  for (char letter : text) {
    if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') escaped += '\\';
    escaped += letter;
  }
  return escaped;
}

std::string ZshValues(const OptionEntry& option) {
  if (!option.choices.empty()) return "(" + Join(option.choices, " ") + ")";
  if (option.value == "DIR") return "_files -/";
  return IsFile(option) ? "_files" : " ";
}

void AppendZshFunction(const CommandEntry& command, const std::string& path, std::string* script) {
  const auto function = [](const std::string& of) {
    std::string name = "_deltafin";
    for (char letter : of.empty() ? "" : "_" + of) name += letter == ' ' ? '_' : letter;
    return name;
  };
  *script += "\n" + function(path) + "() {\n  local context state state_descr line\n";
  *script += "  typeset -A opt_args\n  _arguments -C";
  for (const OptionEntry& option : command.options) {
    for (const std::string& name : option.names) {
      std::string spec = name + "[" + ZshEscaped(Brief(option.help)) + "]";
      if (!option.value.empty()) spec += ":" + option.value + ":" + ZshValues(option);
      *script += " \\\n    " + Quoted(spec);
    }
    if (option.names.empty()) {
      *script += " \\\n    " + Quoted("::" + option.positional + ":" + ZshValues(option));
    }
  }
  if (command.commands.empty()) {
    *script += "\n}\n";
    return;
  }
  *script += " \\\n    '1:command:->command' '*::argument:->argument'\n";
  *script += "  case $state in\n  command)\n    local -a commands=(";
  for (const CommandEntry& sub : command.commands) {
    *script += "\n      " + Quoted(sub.name + ":" + Brief(sub.help));
  }
  *script += ")\n    _describe command commands\n    ;;\n  argument)\n    case $line[1] in\n";
  for (const CommandEntry& sub : command.commands) {
    const std::string sub_path = path.empty() ? sub.name : path + " " + sub.name;
    *script += "    " + sub.name + ") " + function(sub_path) + " ;;\n";
  }
  *script += "    esac\n    ;;\n  esac\n}\n";
}

// ---- fish ----

std::string FishCondition(const CommandEntry& command, const std::string& path) {
  std::string condition;
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find(' ', begin), path.size());
    if (!condition.empty()) condition += "; and ";
    condition += "__fish_seen_subcommand_from " + path.substr(begin, end - begin);
    begin = end + 1;
  }
  if (!command.commands.empty()) {
    if (!condition.empty()) condition += "; and ";
    condition += "not __fish_seen_subcommand_from " + Join(CommandNames(command), " ");
  }
  return condition;
}

std::string FishValues(const OptionEntry& option) {
  if (!option.choices.empty()) return " -x -a " + Quoted(Join(option.choices, " "));
  if (option.value.empty()) return "";
  if (option.value == "DIR") return " -x -a '(__fish_complete_directories)'";
  return IsFile(option) ? " -r -F" : " -x";
}

}  // namespace

std::string BashCompletion(const CommandEntry& program) {
  std::string commands;
  std::string words;
  std::string values;
  VisitAll(program, "", [&](const CommandEntry& command, const std::string& path) {
    if (!command.commands.empty()) {
      commands +=
          "      " + Quoted(path) + ") names=" + Quoted(Join(CommandNames(command), " ")) + " ;;\n";
    }
    std::vector<std::string> all = CommandNames(command);
    std::string others;  // after all options: its pattern matches those too
    for (const OptionEntry& option : command.options) {
      all.insert(all.end(), option.names.begin(), option.names.end());
      const std::string how = BashValues(option);
      for (const std::string& name : option.names) {
        // Also where nothing is known of the value: another option must not be offered there.
        if (option.value.empty()) continue;
        values += "    " + Quoted(path + " " + name) + ") how=" + Quoted(how) + " ;;\n";
      }
      if (option.names.empty() && !how.empty()) {
        others += "    " + Quoted(path + " *") + ") others=" + Quoted(how) + " ;;\n";
      }
    }
    values += others;
    words += "    " + Quoted(path) + ") words=" + Quoted(Join(all, " ")) + " ;;\n";
  });
  // A pattern in a case must not be quoted where it has a star.
  for (size_t at = 0; (at = values.find(" *')", at)) != std::string::npos;) {
    values.replace(at, 4, " '*)");
  }
  return "# bash completion of deltafin: made by `deltafin completion bash`\n"
         "_deltafin() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  local path= names= words= how=none others= index word\n"
         "  for ((index = 1; index < COMP_CWORD; index++)); do\n"
         "    word=${COMP_WORDS[index]}\n"
         "    case $path in\n" +
         commands +
         "      *) names= ;;\n"
         "    esac\n"
         "    [[ -n $word && \" $names \" == *\" $word \"* ]] && path=${path:+$path }$word\n"
         "  done\n"
         "  case $path in\n" +
         words +
         "  esac\n"
         "  case \"$path $previous\" in\n" +
         values +
         "  esac\n"
         "  [[ $how == none ]] && how=\"-W '$words'\" || others=\n"
         "  [[ $current == -* ]] && others=\n"
         "  COMPREPLY=()\n"
         "  local line\n"
         "  while IFS= read -r line; do\n"
         "    [[ -n $line ]] && COMPREPLY+=(\"$line\")\n"
         "  done < <(eval \"compgen $how -- \\\"\\$current\\\"\"\n"
         "           [[ -n $others ]] && eval \"compgen $others -- \\\"\\$current\\\"\")\n"
         "}\n"
         "complete -o filenames -F _deltafin deltafin\n";
}

std::string ZshCompletion(const CommandEntry& program) {
  std::string script = "#compdef deltafin\n# made by `deltafin completion zsh`\n";
  VisitAll(program, "", [&](const CommandEntry& command, const std::string& path) {
    AppendZshFunction(command, path, &script);
  });
  return script + "\n_deltafin \"$@\"\n";
}

std::string FishCompletion(const CommandEntry& program) {
  std::string script =
      "# fish completion of deltafin: made by `deltafin completion fish`\n"
      "complete -c deltafin -f\n";
  VisitAll(program, "", [&](const CommandEntry& command, const std::string& path) {
    const std::string condition = FishCondition(command, path);
    const std::string begin =
        "complete -c deltafin" + (condition.empty() ? "" : " -n " + Quoted(condition));
    for (const CommandEntry& sub : command.commands) {
      script += begin + " -a " + sub.name + " -d " + Quoted(Brief(sub.help)) + "\n";
    }
    for (const OptionEntry& option : command.options) {
      std::string line = begin;
      for (const std::string& name : option.names) {
        line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      const std::string values = FishValues(option);
      // Of a positional only what can be completed.
      if (option.names.empty() && values == " -x") continue;
      script += line + values + " -d " + Quoted(Brief(option.help)) + "\n";
    }
  });
  return script;
}

}  // namespace deltafin
