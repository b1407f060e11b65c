#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/format.h"
#include "deltafin/error.h"

namespace deltafin {
namespace {

constexpr size_t kMaxBytesPerCall = size_t{1} << 30;
constexpr mode_t kMode = 0644;

[[noreturn]] void Fail(const std::string& path, const char* what, int error) {
  throw Error(ErrorCode::kIo, format("{}: {}: {}", path, what,
                                     std::error_code(error, std::generic_category()).message()));
}

// A rename is on the disk when its folder is.
void SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) Fail(folder, "cannot open the folder", errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // EINVAL: a file system that has nothing to sync.
  if (error != 0 && error != EINVAL) Fail(folder, "cannot sync the folder", error);
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_path_(path_ + ".tmp") {
  descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (descriptor_ < 0) Fail(temporary_path_, "cannot create it", errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_path_.c_str());
}

void AtomicFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), kMaxBytesPerCall),
                 static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      Fail(temporary_path_, "cannot write to it", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void AtomicFile::Commit() {
  if (::fsync(descriptor_) != 0) Fail(temporary_path_, "cannot bring it to the disk", errno);
  CommitUnsynced();
  SyncFolderOf(path_);
}

void AtomicFile::CommitUnsynced() {
  const int close_error = ::close(descriptor_) == 0 ? 0 : errno;
  descriptor_ = -1;
  const bool renamed = close_error == 0 && ::rename(temporary_path_.c_str(), path_.c_str()) == 0;
  if (!renamed) {
    const int error = close_error != 0 ? close_error : errno;
    ::unlink(temporary_path_.c_str());
    Fail(path_, "cannot write it", error);
  }
}

void WriteFileAtomically(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.WriteAt(0, bytes);
  file.Commit();
}

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (descriptor_ < 0) Fail(path, "cannot create it", errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(descriptor_);
  if (error == EWOULDBLOCK) {
    throw Error(ErrorCode::kIo,
                format("{}: another process is writing to this folder; wait for it", folder));
  }
  Fail(path, "cannot lock it", error);
}

FolderLock::~FolderLock() { ::close(descriptor_); }

void MakeFolders(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) Fail(folder, "cannot create the folder", error.value());
}

uint64_t FreeDiskBytes(const std::string& folder) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error) Fail(folder, "cannot tell the free space", error.value());
  return space.available;
}

void RemoveFile(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) Fail(path, "cannot remove it", error.value());
}

}  // namespace deltafin
