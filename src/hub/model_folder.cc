#include "hub/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "base/format.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/index_json.h"
#include "store/joined_folders.h"

namespace deltafin {
namespace {

// Also of what is not there yet.
std::filesystem::path RealPath(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::weakly_canonical(std::filesystem::absolute(folder, error), error);
  return error ? std::filesystem::path(folder) : path.has_filename() ? path : path.parent_path();
}

}  // namespace

std::vector<ByteRange> FolderShard::Missing(ByteRange range) const {
  if (presence != nullptr) return presence->Missing(range);
  if (whole) return {};
  return {range};
}

uint64_t FolderShard::MissingBytes(ByteRange range) const {
  uint64_t bytes = 0;
  for (const ByteRange& gap : Missing(range)) bytes += gap.bytes;
  return bytes;
}

uint64_t FolderShard::local_bytes() const {
  if (presence != nullptr) return presence->present_bytes();
  return whole ? remote.bytes : 0;
}

std::vector<std::string> ModelFolders(const std::string& dir,
                                      const std::vector<std::string>& also) {
  std::vector<std::string> folders = {dir};
  std::set<std::filesystem::path> known = {RealPath(dir)};
  for (const std::string& folder : also) {
    if (known.insert(RealPath(folder)).second) folders.push_back(folder);
  }
  return folders;
}

std::vector<std::string> ShardNames(const std::string& dir) {
  return ShardIndex::Read(RealFileSystem(), JoinPath(dir, kIndexFile)).shards();
}

FolderShard FindShard(const RemoteFile& remote, const std::vector<std::string>& folders) {
  FileSystem& fs = RealFileSystem();
  FolderShard shard;
  shard.remote = remote;
  const std::optional<size_t> folder = FolderWith(fs, folders, remote.name);
  if (!folder) return shard;
  shard.folder = folders[*folder];
  shard.path = JoinPath(shard.folder, remote.name);
  shard.presence = ShardPresence::OpenForReading(fs, shard.path);
  const bool other_file = shard.presence != nullptr && shard.presence->file_bytes() != remote.bytes;
  if (other_file) shard.presence.reset();
  shard.whole = shard.presence == nullptr && !other_file &&
                fs.OpenForReading(shard.path)->size() == remote.bytes;
  return shard;
}

namespace {

// macOS would read the shards as they come, to index them.
void KeepFromSpotlight([[maybe_unused]] const std::string& folder) {
#if defined(__APPLE__)
  const std::ofstream file(JoinPath(folder, ".metadata_never_index"), std::ios::app);
#endif
}

}  // namespace

std::vector<InstallLock> LockFolders(const std::vector<std::string>& folders) {
  std::vector<InstallLock> locks;
  for (const std::string& folder : folders) {
    MakeFolders(folder);
    KeepFromSpotlight(folder);
    std::optional<InstallLock> lock = InstallLock::TryFill(folder);
    if (!lock) {
      throw Error(ErrorCode::kIo, InstallLock::FillerOf(folder) + "; wait for it, or stop it");
    }
    locks.push_back(*std::move(lock));
  }
  return locks;
}

void BeginShard(FolderShard& shard) {
  shard.path = JoinPath(shard.folder, shard.remote.name);
  shard.presence.reset();
  shard.presence = ShardPresence::OpenForWriting(RealFileSystem(), shard.path, shard.remote.bytes,
                                                 shard.remote.sha256);
  shard.whole = false;
}

}  // namespace deltafin
