#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "io/file.h"
#include "io/system_file.h"

namespace deltafin {
namespace {

// Some file systems refuse when a file is opened, some at the first read.
bool CanRead(int descriptor) {
  alignas(kReadAlignment) std::byte page[kReadAlignment];
  return ::pread(descriptor, page, sizeof(page), 0) >= 0 || errno != EINVAL;
}

}  // namespace

int OpenPastCache(const std::string& path, int access, int descriptor) noexcept {
  int direct = -1;
  do {
    direct = ::open(path.c_str(), access | O_DIRECT | O_NONBLOCK | O_CLOEXEC);
  } while (direct < 0 && errno == EINTR);
  if (direct < 0) return -1;
  if (IsSameFile(descriptor, direct) && (access != O_RDONLY || CanRead(direct))) return direct;
  ::close(direct);
  return -1;
}

int SyncFile(int descriptor) noexcept { return ::fsync(descriptor) == 0 ? 0 : errno; }

int SyncData(int descriptor) noexcept { return ::fdatasync(descriptor) == 0 ? 0 : errno; }

void StartWriteback(int descriptor, uint64_t offset, uint64_t bytes) noexcept {
  (void)::sync_file_range(descriptor, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                          SYNC_FILE_RANGE_WRITE);
}

void DropFromCache(int descriptor, uint64_t offset, uint64_t bytes) noexcept {
  (void)::posix_fadvise(descriptor, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                        POSIX_FADV_DONTNEED);
}

int PunchHole(int descriptor, uint64_t offset, uint64_t bytes) noexcept {
  const int result = ::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return result == 0 ? 0 : errno;
}

}  // namespace deltafin
