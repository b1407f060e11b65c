#include "store/install_lock.h"

#include "base/format.h"
#include "deltafin/error.h"
#include "io/atomic_file.h"
#include "io/file.h"

namespace deltafin {
namespace {

std::string FolderOf(const std::string& dir) { return JoinPath(dir, ".deltafin/presence"); }
std::string FillPath(const std::string& dir) { return JoinPath(FolderOf(dir), "fill.lock"); }
std::string UsePath(const std::string& dir) { return JoinPath(FolderOf(dir), "use.lock"); }

}  // namespace

std::optional<InstallLock> InstallLock::TryFill(const std::string& dir) {
  MakeFolders(FolderOf(dir));
  std::optional<FileLock> fill = FileLock::Try(FillPath(dir), FileLock::Kind::kExclusive);
  if (!fill) return std::nullopt;
  return InstallLock(std::move(fill), std::nullopt);
}

std::optional<InstallLock> InstallLock::Use(const std::string& dir) {
  if (!RealFileSystem().Exists(FolderOf(dir))) return std::nullopt;
  std::optional<FileLock> use;
  try {
    use = FileLock::Try(UsePath(dir), FileLock::Kind::kShared);
  } catch (const Error&) {
    return std::nullopt;  // a folder that cannot be written cannot be freed from here either
  }
  if (!use) {
    throw Error(
        ErrorCode::kIo,
        format("{}: another process{} is freeing or repairing parts of it; wait for it", dir, [&] {
          const int64_t pid = FileLock::HolderOf(UsePath(dir));
          return pid != 0 ? format(" ({})", pid) : std::string();
        }()));
  }
  return InstallLock(std::nullopt, std::move(use));
}

InstallLock InstallLock::Own(const std::string& dir) {
  if (!RealFileSystem().Exists(dir)) {
    throw Error(ErrorCode::kNotFound, dir + ": there is no such folder; expected that of a model");
  }
  MakeFolders(FolderOf(dir));
  std::optional<FileLock> fill = FileLock::Try(FillPath(dir), FileLock::Kind::kExclusive);
  if (!fill) throw Error(ErrorCode::kIo, FillerOf(dir) + "; wait for it, or stop it");
  std::optional<FileLock> use = FileLock::Try(UsePath(dir), FileLock::Kind::kExclusive);
  if (!use) {
    throw Error(ErrorCode::kIo,
                format("{}: another process is using the model in it; stop that one first", dir));
  }
  return {std::move(fill), std::move(use)};
}

std::string InstallLock::FillerOf(const std::string& dir) {
  const int64_t pid = FileLock::HolderOf(FillPath(dir));
  return format("{}: another process{} is filling this folder", dir,
                pid != 0 ? format(" ({})", pid) : std::string());
}

}  // namespace deltafin
