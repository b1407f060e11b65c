#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/format.h"
#include "deltafin/error.h"
#include "io/read_loop.h"
#include "io/system_file.h"

namespace deltafin {
namespace {

constexpr mode_t kMode = 0644;

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_path_(path_ + ".tmp") {
  descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (descriptor_ < 0) FailFile(temporary_path_, "create", errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_path_.c_str());
}

void AtomicFile::Resize(uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
    FailFile(temporary_path_, "resize", errno);
  }
}

void AtomicFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), kMaxBytesPerCall),
                 static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      FailFile(temporary_path_, "write", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void AtomicFile::Commit() {
  if (const int error = SyncFile(descriptor_); error != 0) FailFile(temporary_path_, "sync", error);
  CommitUnsynced();
  // A rename is on the disk when its folder is.
  if (const int error = SyncFolderOf(path_); error != 0 && error != EINVAL) {
    FailFile(path_, "sync the folder of", error);
  }
}

void AtomicFile::CommitUnsynced() {
  const int close_error = ::close(descriptor_) == 0 ? 0 : errno;
  descriptor_ = -1;
  const bool renamed = close_error == 0 && ::rename(temporary_path_.c_str(), path_.c_str()) == 0;
  if (!renamed) {
    const int error = close_error != 0 ? close_error : errno;
    ::unlink(temporary_path_.c_str());
    FailFile(path_, "write", error);
  }
}

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (descriptor_ < 0) FailFile(path, "create", errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(descriptor_);
  if (error == EWOULDBLOCK) {
    throw Error(ErrorCode::kIo,
                format("{}: another process is writing to this folder; wait for it", folder));
  }
  FailFile(path, "lock", error);
}

FolderLock::~FolderLock() { ::close(descriptor_); }

void MakeFolders(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && !std::filesystem::is_directory(folder, error)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) FailFile(folder, "create", error.value());
}

uint64_t FreeDiskBytes(const std::string& folder) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error) FailFile(folder, "tell the free space of", error.value());
  return space.available;
}

uint64_t DiskBytesOf(const std::string& path) noexcept {
  constexpr uint64_t kBlockBytes = 512;  // whatever st_blksize says
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_blocks) * kBlockBytes
                                            : 0;
}

void RemoveFile(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) FailFile(path, "remove", error.value());
}

}  // namespace deltafin
