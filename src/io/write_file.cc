#include "io/write_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/format.h"
#include "deltafin/error.h"
#include "io/read_loop.h"
#include "io/system_file.h"

namespace deltafin {
namespace {

bool WriteAll(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(descriptor, bytes.data(), std::min(bytes.size(), kMaxBytesPerCall));
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

void WriteFileAtomically(const std::string& path, std::string_view text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  WriteFileAtomically(path, std::span(&bytes, 1));
}

void WriteFileAtomically(const std::string& path,
                         std::span<const std::span<const std::byte>> parts) {
  std::string temporary = path + ".XXXXXX";
  const int descriptor = ::mkstemp(temporary.data());
  if (descriptor < 0) FailFile(path, "write", errno);
  // mkstemp makes files that only their owner may read.
  const bool written = ::fchmod(descriptor, 0644) == 0 &&
                       std::all_of(parts.begin(), parts.end(),
                                   [&](auto part) { return WriteAll(descriptor, part); });
  int error = written ? SyncFile(descriptor) : errno;
  if (::close(descriptor) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    FailFile(path, "write", error);
  }
  (void)SyncFolderOf(path);
}

NewFile::NewFile(std::string path, uint64_t size)
    : path_(std::move(path)), partial_(path_ + ".partial") {
  struct stat there = {};
  if (::stat(path_.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    // Commit would put a file in place of /dev/null, say.
    throw Error(
        ErrorCode::kIo,
        format("{}: expected a file that may be replaced, got a folder or a device", path_));
  }
  descriptor_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) FailFile(partial_, "create", errno);
  if (::ftruncate(descriptor_, static_cast<off_t>(size)) == 0) return;
  const int error = errno;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
  FailFile(partial_, format("make {} bytes of", size), error);
}

NewFile::~NewFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
}

void NewFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), kMaxBytesPerCall),
                 static_cast<off_t>(offset));
    if (written < 0 && errno != EINTR) FailFile(partial_, "write", errno);
    if (written <= 0) continue;
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void NewFile::Commit() {
  if (const int error = SyncFile(descriptor_); error != 0) FailFile(partial_, "write", error);
  DropFromCache(descriptor_, 0, 0);
  if (::rename(partial_.c_str(), path_.c_str()) != 0) FailFile(path_, "create", errno);
  ::close(descriptor_);
  descriptor_ = -1;
  (void)SyncFolderOf(path_);
}

}  // namespace deltafin
