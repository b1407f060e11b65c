#include <fcntl.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "io/system_file.h"

namespace deltafin {
namespace {

int WriteZeros(int descriptor, uint64_t begin, uint64_t end) {
  static constexpr std::byte kZeros[4096] = {};
  while (begin < end) {
    const ssize_t written =
        ::pwrite(descriptor, kZeros, std::min<uint64_t>(sizeof(kZeros), end - begin),
                 static_cast<off_t>(begin));
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) begin += static_cast<uint64_t>(written);
  }
  return 0;
}

}  // namespace

int OpenPastCache(const std::string& path, int access, int descriptor) noexcept {
  // Not dup(2): F_NOCACHE is a property of the open file, which a duplicate shares.
  int direct = -1;
  do {
    direct = ::open(path.c_str(), access | O_NONBLOCK | O_CLOEXEC);
  } while (direct < 0 && errno == EINTR);
  if (direct < 0) return -1;
  if (IsSameFile(descriptor, direct) && ::fcntl(direct, F_NOCACHE, 1) == 0) {
    // The read queue reads ahead itself, and knows what comes next.
    (void)::fcntl(direct, F_RDAHEAD, 0);
    return direct;
  }
  ::close(direct);
  return -1;
}

int SyncFile(int descriptor) noexcept {
  // fsync(2) alone leaves the bytes in the drive's own cache. Not every file system knows the
  // other.
  if (::fcntl(descriptor, F_FULLFSYNC) == 0) return 0;
  return ::fsync(descriptor) == 0 ? 0 : errno;
}

int SyncData(int descriptor) noexcept { return SyncFile(descriptor); }

void StartWriteback(int, uint64_t, uint64_t) noexcept {}

void DropFromCache(int, uint64_t, uint64_t) noexcept {}

// F_PUNCHHOLE takes whole blocks only.
int PunchHole(int descriptor, uint64_t offset, uint64_t bytes) noexcept {
  struct stat file = {};
  struct statfs system = {};
  if (::fstat(descriptor, &file) != 0 || ::fstatfs(descriptor, &system) != 0) return errno;
  const uint64_t end = std::min(offset + bytes, static_cast<uint64_t>(file.st_size));
  if (offset >= end) return 0;
  const uint64_t block = system.f_bsize;
  const uint64_t hole_begin = (offset + block - 1) / block * block;
  const uint64_t hole_end = end / block * block;
  if (hole_begin >= hole_end) return WriteZeros(descriptor, offset, end);
  fpunchhole_t hole = {};
  hole.fp_offset = static_cast<off_t>(hole_begin);
  hole.fp_length = static_cast<off_t>(hole_end - hole_begin);
  if (::fcntl(descriptor, F_PUNCHHOLE, &hole) != 0) return errno;
  const int error = WriteZeros(descriptor, offset, hole_begin);
  return error != 0 ? error : WriteZeros(descriptor, hole_end, end);
}

}  // namespace deltafin
