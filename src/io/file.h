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
};

// The file system. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Throws Error(kNotFound) or Error(kIo).
  virtual std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
};

// The real one, for the life of the process.
FileSystem& RealFileSystem();

// Whole small files (configuration, indexes). Refuses more than max_bytes: Error(kCorrupt).
std::string ReadWholeFile(FileSystem& fs, const std::string& path, uint64_t max_bytes);

// "DIR/NAME".
std::string JoinPath(const std::string& dir, const std::string& name);

}  // namespace deltafin
