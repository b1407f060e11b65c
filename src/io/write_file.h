// Files that are there whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace deltafin {

// Replaces the file `path`: after a crash it holds the old text or the new one. Writes a temporary
// file beside it, syncs it and renames it. Throws Error(kIo), leaving the old file as it was.
void WriteFileAtomically(const std::string& path, std::string_view text);
// The same, of bytes that do not lie in one piece.
void WriteFileAtomically(const std::string& path,
                         std::span<const std::span<const std::byte>> parts);

// A large file that several threads write at any offset. It has the name PATH.partial until Commit.
class NewFile {
 public:
  // Holes of the full size at first. Replaces a file PATH.partial. Throws Error(kIo), also when
  // PATH is there and no regular file.
  NewFile(std::string path, uint64_t size);
  // Removes what was not committed.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Thread-safe. Throws Error(kIo), for one when the disk is full.
  void WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // Syncs the file, lets the page cache drop it and gives it its name. Throws Error(kIo).
  void Commit();

 private:
  const std::string path_;
  const std::string partial_;
  int descriptor_ = -1;
};

}  // namespace deltafin
