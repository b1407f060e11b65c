// Where the user's messages come from: a terminal with line editing, or any other standard input.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace deltafin {

class LineSource {
 public:
  virtual ~LineSource() = default;
  // The next message, which may have several lines; nothing at the end of the input. Throws
  // Error(kIo).
  virtual std::optional<std::string> Next() = 0;

  // Standard input, a message a line; a line that ends with a backslash goes on in the next one.
  static std::unique_ptr<LineSource> FromPipe();
  // Line editing and history (libedit). The history is kept in `history_path`, readable by its
  // owner alone; "": nowhere. Pasted lines and those after a backslash or Alt-Enter are one
  // message. Ctrl-C gives up what was typed.
  static std::unique_ptr<LineSource> FromTerminal(const std::string& history_path, bool styled);
};

}  // namespace deltafin
