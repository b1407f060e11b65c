// Sessions on disk: what lies in a folder of them. Saving and restoring: Session::SaveTo and
// RestoreFrom. The format: docs/decoding.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "deltafin/types.h"

namespace deltafin {

class FileLock;

struct SavedSession {
  std::string name;
  uint64_t bytes = 0;  // of the file
  int64_t num_tokens = 0;
  CacheFormat cache_format = CacheFormat::kF32;
  std::string spine;    // kind of the spine it was computed with
  std::string problem;  // why it cannot be used, "" when nothing is wrong with the file
};

// Where the sessions of a model lie unless told otherwise: MODEL/.deltafin/sessions.
std::string DefaultSessionFolder(const std::string& model_dir);

// The file of a session. Throws Error(kInvalidArgument) unless the name is 1 to 64 letters, digits,
// '-', '_' or '.', and does not begin with '.'.
std::string SessionPath(const std::string& folder, const std::string& name);

bool SessionExists(const std::string& folder, const std::string& name);

// By name; reads the headers only. An absent folder holds none. Throws Error(kIo) when it cannot be
// listed.
std::vector<SavedSession> ListSessions(const std::string& folder);

// Reads and checks the whole file; `tokens`, if set, gets its tokens. Throws Error(kNotFound),
// Error(kCorrupt) or Error(kUnsupported).
SavedSession InspectSession(const std::string& folder, const std::string& name,
                            std::vector<TokenId>* tokens);

// Held by whoever goes on with a session, from before it is restored until after it was saved last:
// of two processes that save one the later would undo what the other said. Given up by the
// destructor and by a process that dies.
class SessionLock {
 public:
  // Makes the folder. Throws Error(kInvalidArgument) as SessionPath, Error(kIo) when another
  // process, or another lock of this one, has the session.
  SessionLock(const std::string& folder, const std::string& name);
  ~SessionLock();
  SessionLock(const SessionLock&) = delete;
  SessionLock& operator=(const SessionLock&) = delete;

 private:
  std::string path_;
  std::unique_ptr<FileLock> lock_;
};

// Throws Error(kNotFound), or Error(kIo), also while somebody has its lock.
void RemoveSession(const std::string& folder, const std::string& name);

}  // namespace deltafin
