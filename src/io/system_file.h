// What the systems do in different ways with an open file: system_file_linux.cc,
// system_file_macos.cc.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>

namespace deltafin {

// A further descriptor of the file behind `descriptor`, past the page cache: its path is opened
// with `access`, O_RDONLY or O_WRONLY. -1 where that is refused, or the path is another file now.
int OpenPastCache(const std::string& path, int access, int descriptor) noexcept;

// True when both descriptors are of the same file.
inline bool IsSameFile(int descriptor, int other) noexcept {
  struct stat one = {};
  struct stat two = {};
  return ::fstat(descriptor, &one) == 0 && ::fstat(other, &two) == 0 && one.st_dev == two.st_dev &&
         one.st_ino == two.st_ino;
}

// So that a new name survives a crash: as fsync(2) for the folder of `path`. 0 or the error; EINVAL
// where the file system has nothing to sync.
inline int SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int descriptor =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY);
  if (descriptor < 0) return errno;
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  return error;
}

// As fsync(2), and as fdatasync(2): the bytes are on the disk afterwards. 0 or the error.
int SyncFile(int descriptor) noexcept;
int SyncData(int descriptor) noexcept;

// As the functions of SparseFile (io/sparse_file.h). Hints; macOS has none of the kind.
void StartWriteback(int descriptor, uint64_t offset, uint64_t bytes) noexcept;
void DropFromCache(int descriptor, uint64_t offset, uint64_t bytes) noexcept;  // 0: to its end
// 0 or the error.
int PunchHole(int descriptor, uint64_t offset, uint64_t bytes) noexcept;

}  // namespace deltafin
