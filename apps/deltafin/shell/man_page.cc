#include "man_page.h"

namespace deltafin {
namespace {

// Nothing in a text may become a request of troff or an escape.
std::string Escaped(const std::string& text) {
  std::string escaped;
  bool line_begins = true;
  for (char letter : text) {
    if (line_begins && (letter == '.' || letter == '\'')) escaped += "\\&";
    if (letter == '\\') {
      escaped += "\\e";
    } else if (letter == '-') {
      escaped += "\\-";
    } else {
      escaped += letter;
    }
    line_begins = letter == '\n';
  }
  return escaped;
}

std::string Bold(const std::string& text) { return "\\fB" + Escaped(text) + "\\fR"; }
std::string Italic(const std::string& text) { return "\\fI" + Escaped(text) + "\\fR"; }

std::string Title(const OptionEntry& option) {
  if (option.names.empty()) return Italic(option.positional);
  std::string title;
  for (const std::string& name : option.names) title += (title.empty() ? "" : ", ") + Bold(name);
  if (!option.value.empty()) title += " " + Italic(option.value);
  return title;
}

void AppendOptions(const CommandEntry& command, std::string* page) {
  for (const OptionEntry& option : command.options) {
    if (!option.names.empty() && option.names.front() == "--help") continue;  // every command's
    *page += ".TP\n" + Title(option) + "\n" + Escaped(option.help) + "\n";
    if (option.choices.empty()) continue;
    std::string choices;
    for (const std::string& choice : option.choices) {
      choices += (choices.empty() ? "" : ", ") + Bold(choice);
    }
    *page += "One of: " + choices + ".\n";
  }
}

void AppendCommand(const CommandEntry& command, const std::string& path, std::string* page) {
  std::string usage = Bold(path);
  for (const OptionEntry& option : command.options) {
    if (option.names.empty()) usage += " [" + Italic(option.positional) + "]";
  }
  if (!command.commands.empty()) usage += " " + Italic("command");
  *page += ".SS " + usage + " [" + Italic("options") + "]\n" + Escaped(command.help) + ".\n";
  AppendOptions(command, page);
  if (!command.footer.empty()) {
    *page += ".PP\n.nf\n" + Escaped(command.footer);
    if (!command.footer.ends_with('\n')) *page += "\n";
    *page += ".fi\n";
  }
  for (const CommandEntry& sub : command.commands) {
    AppendCommand(sub, path + " " + sub.name, page);
  }
}

}  // namespace

std::string ManPage(const CommandEntry& program, const std::string& version) {
  std::string page = ".TH DELTAFIN 1 \"\" \"deltafin " + version + "\" \"User Commands\"\n";
  page += ".SH NAME\ndeltafin \\- run the complete Kimi K3 on one ordinary computer\n";
  page += ".SH SYNOPSIS\n.B deltafin\n" + Italic("command") + " [" + Italic("options") + "]\n";
  page += ".SH DESCRIPTION\n" + Escaped(program.help) +
          "\nA model is a folder with the files of a checkpoint as they were published. Each token "
          "reads only the weights that it touches.\n";
  page += ".SH OPTIONS\n";
  page += ".TP\n" + Bold("--help") + "\nWhat the program, or the command before it, does.\n";
  AppendOptions(program, &page);
  page += ".SH COMMANDS\n";
  for (const CommandEntry& command : program.commands) {
    AppendCommand(command, program.name + " " + command.name, &page);
  }
  page +=
      ".SH ENVIRONMENT\n.TP\n.B DELTAFIN_ROOT\nFolder that holds the default model, Kimi\\-K3.\n"
      ".TP\n.B XDG_STATE_HOME\nWhere " +
      Bold("deltafin chat") +
      " keeps its history (default: ~/.local/state).\n"
      ".PP\nOptions above name further variables that set their defaults.\n";
  page +=
      ".SH EXIT STATUS\n0: done. 1: it failed; one line on standard error says why. 2: the command "
      "line is wrong. 130, 143, 129: interrupted, terminated, the terminal was lost.\n";
  return page;
}

}  // namespace deltafin
