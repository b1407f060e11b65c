// The conversation at a terminal or a pipe: reads messages and commands until the input ends.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "answer_view.h"
#include "conversation.h"
#include "deltafin/saved_sessions.h"
#include "line_source.h"

namespace deltafin {

struct ChatLoopOptions {
  ViewOptions view;
  std::string session_folder;
  std::string session_name;  // kept under this name after every answer; "": not kept
};

class ChatLoop {
 public:
  ChatLoop(Engine& engine, Conversation& conversation, LineSource& lines,
           const ChatLoopOptions& options);
  // Goes on with the session of that name; false if there is none. Throws Error.
  bool Resume();
  // Returns the exit status: for a pipe 1 when a command or question failed, and 130 after Ctrl-C.
  int Run();

  // What /help says.
  static std::string Help();

 private:
  void Ask(const std::string& question);
  // False: leave.
  bool Command(const std::string& line);
  void Save(const std::string& name);
  void Load(const std::string& name);
  // The lock of a session; null when it is the one that is held already.
  std::unique_ptr<SessionLock> LockOf(const std::string& name) const;
  // The session from now on, with its lock unless that is held already.
  void KeepAs(const std::string& name, std::unique_ptr<SessionLock> lock);
  void SetSystem(const std::string& text);
  void SetEffort(const std::string& text);
  void ToggleThinking();
  // To the user, apart from answers.
  void Note(const std::string& text) const;
  void Complain(const std::string& text);

  Engine& engine_;
  Conversation& conversation_;
  LineSource& lines_;
  ChatLoopOptions options_;
  std::unique_ptr<SessionLock> lock_;  // of the session with that name
  TurnResult last_;
  bool failed_ = false;
  bool was_interrupted_ = false;  // the last answer
};

}  // namespace deltafin
