#include "deltafin/saved_sessions.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/format.h"
#include "deltafin/error.h"
#include "engine/session_file.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/sparse_file.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".session";

bool IsName(std::string_view name) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= 64 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), good);
}

SavedSession Describe(const std::string& name, const SessionFileSummary& summary) {
  SavedSession session;
  session.name = name;
  session.bytes = summary.bytes;
  session.num_tokens = summary.num_tokens;
  session.cache_format = summary.origin.cache_format;
  session.spine = summary.origin.spine;
  return session;
}

}  // namespace

std::string DefaultSessionFolder(const std::string& model_dir) {
  return JoinPath(JoinPath(model_dir, ".deltafin"), "sessions");
}

std::string SessionPath(const std::string& folder, const std::string& name) {
  if (!IsName(name)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "session name: expected 1 to 64 letters, digits, '-', '_' or '.', got \"" + name + "\"");
  }
  return JoinPath(folder, name + std::string(kExtension));
}

bool SessionExists(const std::string& folder, const std::string& name) {
  return RealFileSystem().Exists(SessionPath(folder, name));
}

std::vector<SavedSession> ListSessions(const std::string& folder) {
  std::vector<SavedSession> sessions;
  std::error_code code;
  const fs::directory_iterator entries(folder, code);
  if (code && code != std::errc::no_such_file_or_directory) {
    throw Error(ErrorCode::kIo, folder + ": cannot be listed: " + code.message());
  }
  for (const fs::directory_entry& entry : entries) {
    const std::string file = entry.path().filename().string();
    const std::string name = entry.path().stem().string();
    // A file that is being written has another ending.
    if (!file.ends_with(kExtension) || !IsName(name)) continue;
    try {
      sessions.push_back(Describe(name, ReadSessionSummary(entry.path().string())));
    } catch (const Error& error) {
      SavedSession& bad = sessions.emplace_back();
      bad.name = name;
      bad.problem = error.what();
    }
  }
  std::sort(sessions.begin(), sessions.end(),
            [](const SavedSession& a, const SavedSession& b) { return a.name < b.name; });
  return sessions;
}

SavedSession InspectSession(const std::string& folder, const std::string& name,
                            std::vector<TokenId>* tokens) {
  const std::string path = SessionPath(folder, name);
  SavedSession session = Describe(name, ReadSessionSummary(path));
  const SessionReader reader(path);
  if (tokens != nullptr) *tokens = reader.content().tokens;
  return session;
}

// The file is there while the lock is held. One that was removed between being opened and being
// locked keeps nobody out: then it is made again.
SessionLock::SessionLock(const std::string& folder, const std::string& name) {
  const std::string session = SessionPath(folder, name);
  path_ = JoinPath(folder, "." + name + ".lock");
  MakeFolders(folder);
  while (lock_ == nullptr) {
    std::optional<FileLock> lock = FileLock::Try(path_, FileLock::Kind::kExclusive);
    if (!lock) {
      const int64_t pid = FileLock::HolderOf(path_);
      throw Error(ErrorCode::kIo,
                  format("{}: another process{} goes on with this session; end that one first, or "
                         "take another name",
                         session, pid != 0 ? format(" ({})", pid) : std::string()));
    }
    if (lock->IsAt(path_)) lock_ = std::make_unique<FileLock>(*std::move(lock));
  }
}

SessionLock::~SessionLock() {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

void RemoveSession(const std::string& folder, const std::string& name) {
  const std::string path = SessionPath(folder, name);
  if (!SessionExists(folder, name)) {
    throw Error(ErrorCode::kNotFound, path + ": there is no such session");
  }
  const SessionLock lock(folder, name);
  std::error_code error;
  fs::remove(path + ".tmp", error);  // of a save that was cut off
  if (fs::remove(path, error)) return;
  if (!error) throw Error(ErrorCode::kNotFound, path + ": there is no such session");
  throw Error(ErrorCode::kIo, path + ": cannot be removed: " + error.message());
}

}  // namespace deltafin
