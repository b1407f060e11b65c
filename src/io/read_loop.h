// The loop around pread, apart from the system call so that tests can stand in for the kernel.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace deltafin {

// As pread(2) on an open file: bytes read, 0 at the end of the file, -1 with errno.
using PreadFunction = std::function<ssize_t(void* dst, size_t bytes, off_t offset)>;

// Fills dst from `offset`: ReadableFile::ReadAt without the file. `path` is for messages.
void ReadFully(const PreadFunction& pread, const std::string& path, uint64_t offset,
               std::span<std::byte> dst);

// How far a read has come that may take several calls. A direct read goes on at the beginning of
// the page (`alignment` kReadAlignment) in which the last call ended, others where it ended (1).
class ReadCursor {
 public:
  ReadCursor(uint64_t offset, std::span<std::byte> dst, size_t needed, size_t alignment)
      : offset_(offset), dst_(dst), needed_(needed), alignment_(alignment) {}

  bool complete() const { return got_ >= needed_; }
  size_t got() const { return got_; }
  // The next call.
  uint64_t offset() const { return offset_ + resume_; }
  std::span<std::byte> dst() const;
  // A call gave `bytes`. False when that is nothing new: the file ended.
  [[nodiscard]] bool Advance(size_t bytes);

 private:
  uint64_t offset_;
  std::span<std::byte> dst_;
  size_t needed_;
  size_t alignment_;
  size_t got_ = 0;
  size_t resume_ = 0;
};

// ReadFully for a descriptor without page cache, as ReadableFile::ReadDirect: a call that ends
// inside a page is taken up at the beginning of that page. False, with nothing usable in dst, when
// the system refuses direct reads (EINVAL).
[[nodiscard]] bool ReadDirectFully(const PreadFunction& pread, const std::string& path,
                                   uint64_t offset, std::span<std::byte> dst, size_t needed);

// Throws the Error(kIo) of a read that got `done` of `bytes` bytes: `reason` is what came then.
[[noreturn]] void FailRead(const std::string& path, uint64_t offset, uint64_t bytes, uint64_t done,
                           const std::string& reason);
// The reason for an errno, and for a read of 0 bytes.
std::string ReasonOf(int error);
// Throws "PATH: cannot WHAT it: REASON" with kNoSpace when the disk is full, else kIo.
[[noreturn]] void FailFile(const std::string& path, const std::string& what, int error);
inline constexpr const char* kFileEnded = "the file ended";

// Linux moves at most 0x7ffff000 bytes per call and macOS refuses 2 GiB and more.
inline constexpr size_t kMaxBytesPerCall = size_t{1} << 30;

}  // namespace deltafin
