// A file of its full size from the start that is filled in any order, and what lets several
// processes share one: a journal that only grows, and locks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/file.h"

namespace deltafin {

// Thread-safe. All functions throw Error naming the file: kNoSpace when the disk is full, else kIo.
class SparseFile {
 public:
  // Opens it, or creates it with nothing but a hole. A file of another size gets this one: what
  // lies beyond is cut off.
  SparseFile(std::string path, uint64_t bytes);
  virtual ~SparseFile();
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;

  const std::string& path() const { return path_; }
  void WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // The same past the page cache, waiting for the disk to take it. Offset, address and size are
  // multiples of DirectWriteAlignment(). May be mixed with WriteAt, also by several threads and
  // processes, as long as no two write the same bytes. False when the file system refuses it: the
  // range then holds anything, and WriteAt has to do it.
  [[nodiscard]] bool WriteDirect(uint64_t offset, std::span<const std::byte> bytes);
  // Lets the disk begin with what was written, without waiting.
  void StartWriteback(uint64_t offset, uint64_t bytes) noexcept;
  // Waits until everything that was written before is on the disk.
  void Sync();
  // Gives back the memory in which the system keeps a range that is on the disk.
  void DropFromCache(uint64_t offset, uint64_t bytes) noexcept;
  // The range reads as zeros afterwards and takes no room, as far as whole blocks go.
  void PunchHole(uint64_t offset, uint64_t bytes);

 protected:
  // pwrite(2) on the file, through the page cache or past it: where a test can stand in for the
  // system. EINVAL is a refusal of direct writes.
  virtual ssize_t Pwrite(ReadMode mode, const void* bytes, size_t count, off_t offset);

 private:
  const std::string path_;
  int descriptor_ = -1;
  std::once_flag direct_opened_;
  int direct_ = -1;
  std::atomic<bool> direct_refused_ = false;
};

// At least a page: so no page of the cache ever holds bytes that are written past it.
size_t DirectWriteAlignment();

// False when a part of the range was never written, or was punched, and the file system can tell.
bool IsFilled(const ReadableFile& file, uint64_t offset, uint64_t bytes);

// A file that only grows. One writer. Throws as SparseFile.
class JournalFile {
 public:
  // Creates it when it is not there. What lies after the first `bytes` is cut off.
  JournalFile(std::string path, uint64_t bytes);
  ~JournalFile();
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;

  // The bytes are on the disk when it returns. After an error the file is as long as before, if the
  // system lets it be cut.
  void Append(std::string_view bytes);
  uint64_t size() const { return size_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// A lock on a file that exists for that purpose. Given up by the destructor and by a process that
// dies.
class FileLock {
 public:
  enum class Kind : uint8_t { kShared, kExclusive };
  // Creates the file. Empty when another process holds it in a way that excludes this one. Throws
  // Error(kIo).
  static std::optional<FileLock> Try(const std::string& path, Kind kind);
  // The process that holds it exclusively, as far as it left its number; 0 otherwise.
  static int64_t HolderOf(const std::string& path);

  // False when the file was removed, or replaced, since it was opened: whoever comes next will lock
  // another one.
  bool IsAt(const std::string& path) const noexcept;

  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  FileLock(const FileLock&) = delete;

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace deltafin
