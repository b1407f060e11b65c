#include "io/sparse_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "base/format.h"
#include "deltafin/error.h"
#include "io/read_loop.h"
#include "io/system_file.h"

namespace deltafin {
namespace {

constexpr mode_t kMode = 0644;

int OpenOrCreate(const std::string& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC, kMode);
  if (descriptor < 0) FailFile(path, "create", errno);
  return descriptor;
}

// `pwrite` is as pwrite(2) on an open file. 0 or the error.
template <class Pwrite>
int WriteAll(const Pwrite& pwrite, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(bytes.data(), std::min(bytes.size(), kMaxBytesPerCall), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return 0;
}

int WriteAll(int descriptor, uint64_t offset, std::span<const std::byte> bytes) {
  return WriteAll([descriptor](const void* from, size_t count,
                               off_t at) { return ::pwrite(descriptor, from, count, at); },
                  offset, bytes);
}

}  // namespace

SparseFile::SparseFile(std::string path, uint64_t bytes) : path_(std::move(path)) {
  descriptor_ = OpenOrCreate(path_, O_RDWR);
  struct stat status = {};
  int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error == 0 && static_cast<uint64_t>(status.st_size) != bytes) {
    error = ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    // The size is metadata that later data syncs do not bring to the disk.
    if (error == 0) error = SyncFile(descriptor_);
    (void)SyncFolderOf(path_);
  }
  if (error == 0) return;
  ::close(descriptor_);
  FailFile(path_, format("make {} bytes of", bytes), error);
}

SparseFile::~SparseFile() {
  ::close(descriptor_);
  if (direct_ >= 0) ::close(direct_);
}

ssize_t SparseFile::Pwrite(ReadMode mode, const void* bytes, size_t count, off_t offset) {
  if (mode == ReadMode::kBuffered) return ::pwrite(descriptor_, bytes, count, offset);
  std::call_once(direct_opened_, [this] { direct_ = OpenPastCache(path_, O_WRONLY, descriptor_); });
  if (direct_ >= 0) return ::pwrite(direct_, bytes, count, offset);
  errno = EINVAL;
  return -1;
}

void SparseFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  const auto pwrite = [this](const void* from, size_t count, off_t at) {
    return Pwrite(ReadMode::kBuffered, from, count, at);
  };
  if (const int error = WriteAll(pwrite, offset, bytes); error != 0) {
    FailFile(path_, "write", error);
  }
}

bool SparseFile::WriteDirect(uint64_t offset, std::span<const std::byte> bytes) {
  const size_t alignment = DirectWriteAlignment();
  while (!bytes.empty() && !direct_refused_) {
    const ssize_t written =
        Pwrite(ReadMode::kDirect, bytes.data(), std::min(bytes.size(), kMaxBytesPerCall),
               static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno != EINVAL) FailFile(path_, "write", errno);
    }
    // A call that ended inside a block is taken up at its beginning.
    const size_t done = written < 0 ? 0 : static_cast<size_t>(written) / alignment * alignment;
    if (done == 0) direct_refused_ = true;
    bytes = bytes.subspan(done);
    offset += done;
  }
  return bytes.empty();
}

void SparseFile::StartWriteback(uint64_t offset, uint64_t bytes) noexcept {
  deltafin::StartWriteback(descriptor_, offset, bytes);
}

void SparseFile::Sync() {
  if (const int error = SyncData(descriptor_); error != 0) FailFile(path_, "write", error);
}

void SparseFile::DropFromCache(uint64_t offset, uint64_t bytes) noexcept {
  deltafin::DropFromCache(descriptor_, offset, bytes);
}

void SparseFile::PunchHole(uint64_t offset, uint64_t bytes) {
  const int error = deltafin::PunchHole(descriptor_, offset, bytes);
  if (error != 0) FailFile(path_, "free a part of", error);
}

size_t DirectWriteAlignment() {
  static const size_t alignment =
      std::max(kReadAlignment, static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
  return alignment;
}

std::unique_ptr<SparseFile> FileSystem::OpenSparse(const std::string& path, uint64_t bytes) {
  return std::make_unique<SparseFile>(path, bytes);
}

bool IsFilled(const ReadableFile& file, uint64_t offset, uint64_t bytes) {
  const int descriptor = file.Descriptor(ReadMode::kBuffered);
  if (descriptor < 0) return true;
  const off_t hole = ::lseek(descriptor, static_cast<off_t>(offset), SEEK_HOLE);
  return hole < 0 || static_cast<uint64_t>(hole) >= offset + bytes;
}

JournalFile::JournalFile(std::string path, uint64_t bytes) : path_(std::move(path)), size_(bytes) {
  descriptor_ = OpenOrCreate(path_, O_RDWR);
  const int error = ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error == 0) return;
  ::close(descriptor_);
  FailFile(path_, "open", error);
}

JournalFile::~JournalFile() { ::close(descriptor_); }

void JournalFile::Append(std::string_view bytes) {
  const bool is_first = size_ == 0;
  int error = WriteAll(descriptor_, size_, std::as_bytes(std::span(bytes)));
  if (error == 0) error = SyncData(descriptor_);
  if (error != 0) {
    // What was written of it must not look like a record later.
    if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) FailFile(path_, "cut", errno);
    FailFile(path_, "write", error);
  }
  size_ += bytes.size();
  if (is_first) (void)SyncFolderOf(path_);
}

std::optional<FileLock> FileLock::Try(const std::string& path, Kind kind) {
  int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  // Who may only read can share.
  if (descriptor < 0 && kind == Kind::kShared) {
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  if (descriptor < 0) FailFile(path, "open", errno);
  const int operation = kind == Kind::kShared ? LOCK_SH : LOCK_EX;
  if (::flock(descriptor, operation | LOCK_NB) != 0) {
    const int error = errno;
    ::close(descriptor);
    if (error == EWOULDBLOCK) return std::nullopt;
    FailFile(path, "lock", error);
  }
  if (kind == Kind::kExclusive && ::ftruncate(descriptor, 0) == 0) {
    // For messages only: no matter if it fails.
    const std::string pid = std::to_string(::getpid());
    (void)WriteAll(descriptor, 0, std::as_bytes(std::span(pid)));
  }
  return FileLock(descriptor);
}

int64_t FileLock::HolderOf(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  char text[24] = {};
  const ssize_t got = ::pread(descriptor, text, sizeof(text) - 1, 0);
  ::close(descriptor);
  return got > 0 ? std::strtoll(text, nullptr, 10) : 0;
}

bool FileLock::IsAt(const std::string& path) const noexcept {
  struct stat held = {};
  struct stat named = {};
  return ::fstat(descriptor_, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

}  // namespace deltafin
