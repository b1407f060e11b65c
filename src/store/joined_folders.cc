#include "store/joined_folders.h"

#include <filesystem>

#include "base/format.h"
#include "deltafin/error.h"
#include "store/shard_presence.h"

namespace deltafin {

std::optional<size_t> FolderWith(FileSystem& fs, const std::vector<std::string>& folders,
                                 const std::string& name) {
  std::vector<size_t> having;
  for (size_t i = 0; i < folders.size(); ++i) {
    if (fs.Exists(JoinPath(folders[i], name))) having.push_back(i);
  }
  if (having.empty()) return std::nullopt;
  for (const size_t i : having) {
    if (having.size() == 1) break;
    const auto presence = ShardPresence::OpenForReading(fs, JoinPath(folders[i], name));
    if (presence == nullptr || presence->complete()) return i;
  }
  return having.front();
}

void CheckShardFolders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    std::error_code ignored;
    if (std::filesystem::is_directory(folder, ignored)) continue;
    throw Error(ErrorCode::kNotFound,
                format("{}: expected a folder with shards (--also), got {}", folder,
                       std::filesystem::exists(folder, ignored) ? "a file" : "none of that name"));
  }
}

std::string FolderFlags(const std::string& dir, const std::vector<std::string>& others) {
  std::string flags = "--dir " + dir;
  for (const std::string& other : others) flags += " --also " + other;
  return flags;
}

JoinedFolders::JoinedFolders(FileSystem& base, const std::string& dir,
                             const std::vector<std::string>& others)
    : base_(base), folders_{dir} {
  CheckShardFolders(others);
  folders_.insert(folders_.end(), others.begin(), others.end());
}

std::string JoinedFolders::Find(const std::string& path) const {
  const std::string prefix = JoinPath(folders_.front(), "");
  if (folders_.size() == 1 || !path.starts_with(prefix)) return path;
  const std::string name = path.substr(prefix.size());
  if (name.find('/') != std::string::npos) return path;  // only the files of the release
  const std::optional<size_t> folder = FolderWith(base_, folders_, name);
  return folder ? JoinPath(folders_[*folder], name) : path;
}

}  // namespace deltafin
