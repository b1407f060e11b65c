#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <mutex>
#include <system_error>

#include "base/format.h"
#include "io/read_loop.h"
#include "io/system_file.h"

namespace deltafin {

static_assert(sizeof(off_t) == 8, "shards are larger than 2 GiB");

namespace {

int OpenRetrying(const std::string& path, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_RDONLY | O_CLOEXEC);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

PreadFunction PreadOf(int descriptor) {
  return
      [descriptor](void* to, size_t bytes, off_t at) { return ::pread(descriptor, to, bytes, at); };
}

class PosixFile final : public ReadableFile {
 public:
  PosixFile(int descriptor, uint64_t size, std::string path)
      : descriptor_(descriptor), size_(size), path_(std::move(path)) {}
  ~PosixFile() override {
    ::close(descriptor_);
    if (direct_ >= 0) ::close(direct_);
  }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  void ReadAt(uint64_t offset, std::span<std::byte> dst) const override {
    ReadFully(PreadOf(descriptor_), path_, offset, dst);
  }
  uint64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }

  void ReadDirect(uint64_t offset, std::span<std::byte> dst, size_t needed) const override {
    const int direct = Descriptor(ReadMode::kDirect);
    if (direct >= 0) {
      if (ReadDirectFully(PreadOf(direct), path_, offset, dst, needed)) return;
      refused_ = true;
    }
    ReadAt(offset, dst.first(needed));
  }
  int Descriptor(ReadMode mode) const override {
    if (mode == ReadMode::kBuffered) return descriptor_;
    std::call_once(direct_opened_,
                   [this] { direct_ = OpenPastCache(path_, O_RDONLY, descriptor_); });
    return refused_ ? -1 : direct_;
  }

 private:
  mutable std::once_flag direct_opened_;
  mutable int direct_ = -1;
  mutable std::atomic<bool> refused_ = false;  // by a read, after the file was opened
  const int descriptor_;
  const uint64_t size_;
  const std::string path_;
};

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) override {
    // O_NONBLOCK: a pipe in place of a file must fail the check below, not block here.
    const int descriptor = OpenRetrying(path, O_NONBLOCK);
    if (descriptor < 0) {
      const int error = errno;
      const bool missing = error == ENOENT || error == ENOTDIR;
      throw Error(missing ? ErrorCode::kNotFound : ErrorCode::kIo,
                  format("{}: cannot open: {}", path, ReasonOf(error)));
    }
    struct stat status = {};
    const int error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
    if (error != 0 || !S_ISREG(status.st_mode)) {
      ::close(descriptor);
      throw Error(ErrorCode::kIo, format("{}: cannot open: {}", path,
                                         error != 0 ? ReasonOf(error) : "not a regular file"));
    }
    return std::make_unique<PosixFile>(descriptor, static_cast<uint64_t>(status.st_size), path);
  }

  bool Exists(const std::string& path) override {
    struct stat status = {};
    return ::stat(path.c_str(), &status) == 0;
  }
};

}  // namespace

std::span<std::byte> ReadCursor::dst() const {
  return dst_.subspan(resume_, std::min(dst_.size() - resume_, kMaxBytesPerCall));
}

bool ReadCursor::Advance(size_t bytes) {
  const size_t total = resume_ + bytes;
  if (total <= got_) return false;
  got_ = total;
  resume_ = total / alignment_ * alignment_;
  return true;
}

void ReadFully(const PreadFunction& pread, const std::string& path, uint64_t offset,
               std::span<std::byte> dst) {
  constexpr uint64_t kMaxOffset = std::numeric_limits<off_t>::max();
  ReadCursor cursor(offset, dst, dst.size(), 1);
  const auto fail = [&](const std::string& reason) {
    FailRead(path, offset, dst.size(), cursor.got(), reason);
  };
  if (offset > kMaxOffset || dst.size() > kMaxOffset - offset) {
    fail("the end of what a file can hold");
  }
  while (!cursor.complete()) {
    const std::span<std::byte> to = cursor.dst();
    const ssize_t got = pread(to.data(), to.size(), static_cast<off_t>(cursor.offset()));
    if (got < 0) {
      if (errno != EINTR) fail(ReasonOf(errno));
    } else if (!cursor.Advance(static_cast<size_t>(got))) {
      fail(kFileEnded);
    }
  }
}

bool ReadDirectFully(const PreadFunction& pread, const std::string& path, uint64_t offset,
                     std::span<std::byte> dst, size_t needed) {
  ReadCursor cursor(offset, dst, needed, kReadAlignment);
  while (!cursor.complete()) {
    const std::span<std::byte> to = cursor.dst();
    const ssize_t got = pread(to.data(), to.size(), static_cast<off_t>(cursor.offset()));
    if (got < 0) {
      if (errno == EINVAL) return false;
      if (errno != EINTR) FailRead(path, offset, needed, cursor.got(), ReasonOf(errno));
    } else if (!cursor.Advance(static_cast<size_t>(got))) {
      FailRead(path, offset, needed, cursor.got(), kFileEnded);
    }
  }
  return true;
}

void FailRead(const std::string& path, uint64_t offset, uint64_t bytes, uint64_t done,
              const std::string& reason) {
  throw Error(ErrorCode::kIo, format("{}: reading {} bytes at offset {}: got {} bytes, then {}",
                                     path, bytes, offset, done, reason));
}

std::string ReasonOf(int error) {
  const std::string reason = std::error_code(error, std::generic_category()).message();
  return error == EMFILE ? reason + "; allow more of them (ulimit -n)" : reason;
}

void FailFile(const std::string& path, const std::string& what, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(full ? ErrorCode::kNoSpace : ErrorCode::kIo,
              format("{}: cannot {} it: {}", path, what, ReasonOf(error)));
}

FileSystem& RealFileSystem() {
  static PosixFileSystem file_system;
  return file_system;
}

std::string ReadWholeFile(FileSystem& fs, const std::string& path, uint64_t max_bytes) {
  const std::unique_ptr<ReadableFile> file = fs.OpenForReading(path);
  if (file->size() > max_bytes) {
    throw Error(ErrorCode::kCorrupt,
                format("{}: has {} bytes, expected at most {}", path, file->size(), max_bytes));
  }
  std::string text(file->size(), '\0');
  file->ReadAt(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string JoinPath(const std::string& dir, const std::string& name) {
  if (dir.empty()) return name;
  return dir.back() == '/' ? dir + name : dir + '/' + name;
}

}  // namespace deltafin
