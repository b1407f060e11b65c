// The one seam over the operating system's files, so that tests can inject faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deltafin/error.h"

namespace deltafin {

// Direct reads need buffers, offsets and lengths at multiples of this.
inline constexpr size_t kReadAlignment = 4096;

enum class ReadMode : uint8_t {
  kBuffered,  // through the page cache
  kDirect,    // past it
};

// A file opened for reading. Thread-safe (positional reads only).
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Reads exactly dst.size() bytes at `offset`, however many system calls that takes (short reads,
  // EINTR, more than 2 GiB). Throws Error(kIo) naming file, offset, expected and got; reading past
  // the end is such an error.
  virtual void ReadAt(uint64_t offset, std::span<std::byte> dst) const = 0;
  // Size when the file was opened.
  virtual uint64_t size() const = 0;
  virtual const std::string& path() const = 0;

  // False when a part of the range is not in the file yet, but comes with ReadAt (a model that is
  // fetched as it is used): what follows would read a hole there.
  virtual bool Holds(uint64_t /*offset*/, uint64_t /*bytes*/) const { return true; }
  // As ReadAt for the first `needed` bytes of dst, past the page cache where the file can do that.
  // offset, dst.data() and dst.size() are multiples of kReadAlignment; dst may reach beyond the end
  // of the file, and what it holds after `needed` is unspecified.
  virtual void ReadDirect(uint64_t offset, std::span<std::byte> dst, size_t needed) const {
    ReadAt(offset, dst.first(needed));
  }
  // For who reads by other means than the above (io_uring): a descriptor that lives as long as the
  // file, -1 when there is none in this mode. A file that has one for kBuffered and none for
  // kDirect lies on a file system that refuses direct reads; a file with none at all must be read
  // through ReadAt or ReadDirect.
  virtual int Descriptor(ReadMode) const { return -1; }
};

// A file without a name: nobody else sees it, and it goes away with this object or the process.
// Thread-safe for ranges that do not overlap. What was never written, or discarded, must not be
// read. size() is 0.
class ScratchFile : public ReadableFile {
 public:
  // Throws Error naming the folder: kNoSpace when the disk is full, else kIo.
  virtual void WriteAt(uint64_t offset, std::span<const std::byte> bytes) = 0;
  // The range takes no room on the disk any more, where the file system can do that.
  virtual void Discard(uint64_t offset, uint64_t bytes) noexcept = 0;
};

class SparseFile;

// The file system. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Throws Error(kNotFound) or Error(kIo).
  virtual std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  // On the disk of `folder`, which is made if it is not there. Throws Error(kIo or kNoSpace). Where
  // only names are redirected this is the real file system's.
  virtual std::unique_ptr<ScratchFile> CreateScratch(const std::string& folder);
  // As the constructor of SparseFile. Likewise.
  virtual std::unique_ptr<SparseFile> OpenSparse(const std::string& path, uint64_t bytes);
};

// The real one, for the life of the process.
FileSystem& RealFileSystem();

// Whole small files (configuration, indexes). Refuses more than max_bytes: Error(kCorrupt).
std::string ReadWholeFile(FileSystem& fs, const std::string& path, uint64_t max_bytes);

// "DIR/NAME".
std::string JoinPath(const std::string& dir, const std::string& name);

}  // namespace deltafin
