// deltafin run --session: a conversation that survives the process.
#pragma once

#include <optional>
#include <string>

#include "command_line.h"
#include "deltafin/saved_sessions.h"
#include "deltafin/session.h"
#include "session_note.h"

namespace deltafin {

struct SessionFlags {
  std::string name;    // "": nothing is saved
  std::string folder;  // "": that of the model
};

void AddSessionFlags(CLI::App& command, SessionFlags* flags);

class SavedRun {
 public:
  // The folder of `flags`, or the model's.
  SavedRun(const SessionFlags& flags, const std::string& model_dir);

  // Whether there is something to go on with.
  bool exists() const { return exists_; }
  // Keeps other processes from it from here on. Throws Error(kIo) when one has it.
  void Own();
  // Puts it into the session, with what follows. Throws Error when it does not fit the engine.
  void Restore(Session& session);

  SessionNote note;  // kept in the file beside the session

  // As session.Generate, saving while the prompt is read, after it, while the answer grows and at
  // its end: what is killed loses the last few tokens at most. Between its parts a cancelled
  // generation is saved.
  GenerateResult Generate(Session& session, std::span<const TokenId> prompt,
                          const GenerateOptions& options) const;

 private:
  void Save(const Session& session) const;
  std::string folder_;
  std::string name_;
  std::string path_;
  std::optional<SessionLock> lock_;
  bool exists_ = false;
};

}  // namespace deltafin
