#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "base/format.h"
#include "io/read_loop.h"

namespace deltafin {

static_assert(sizeof(off_t) == 8, "shards are larger than 2 GiB");

namespace {

// Linux moves at most 0x7ffff000 bytes per call and macOS refuses 2 GiB and more.
constexpr size_t kMaxBytesPerCall = size_t{1} << 30;

std::string Reason(int error) { return std::error_code(error, std::generic_category()).message(); }

class PosixFile final : public ReadableFile {
 public:
  PosixFile(int descriptor, uint64_t size, std::string path)
      : descriptor_(descriptor), size_(size), path_(std::move(path)) {}
  ~PosixFile() override { ::close(descriptor_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  void ReadAt(uint64_t offset, std::span<std::byte> dst) const override {
    ReadFully(
        [this](void* to, size_t bytes, off_t at) { return ::pread(descriptor_, to, bytes, at); },
        path_, offset, dst);
  }
  uint64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }

 private:
  const int descriptor_;
  const uint64_t size_;
  const std::string path_;
};

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) override {
    int descriptor = -1;
    do {
      // O_NONBLOCK: a pipe in place of a file must fail the check below, not block here.
      descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0) {
      const int error = errno;
      const bool missing = error == ENOENT || error == ENOTDIR;
      throw Error(missing ? ErrorCode::kNotFound : ErrorCode::kIo,
                  format("{}: cannot open: {}", path, Reason(error)));
    }
    struct stat status = {};
    const int error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
    if (error != 0 || !S_ISREG(status.st_mode)) {
      ::close(descriptor);
      throw Error(ErrorCode::kIo, format("{}: cannot open: {}", path,
                                         error != 0 ? Reason(error) : "not a regular file"));
    }
    return std::make_unique<PosixFile>(descriptor, static_cast<uint64_t>(status.st_size), path);
  }

  bool Exists(const std::string& path) override {
    struct stat status = {};
    return ::stat(path.c_str(), &status) == 0;
  }
};

}  // namespace

void ReadFully(const PreadFunction& pread, const std::string& path, uint64_t offset,
               std::span<std::byte> dst) {
  constexpr uint64_t kMaxOffset = std::numeric_limits<off_t>::max();
  const auto fail = [&](size_t done, const std::string& reason) {
    throw Error(ErrorCode::kIo, format("{}: reading {} bytes at offset {}: got {} bytes, then {}",
                                       path, dst.size(), offset, done, reason));
  };
  if (offset > kMaxOffset || dst.size() > kMaxOffset - offset) {
    fail(0, "the end of what a file can hold");
  }
  size_t done = 0;
  while (done < dst.size()) {
    const size_t want = std::min(dst.size() - done, kMaxBytesPerCall);
    const ssize_t got = pread(dst.data() + done, want, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      fail(done, "the file ended");
    } else if (errno != EINTR) {
      fail(done, Reason(errno));
    }
  }
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
