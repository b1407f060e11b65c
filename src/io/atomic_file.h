// Writing files so that a reader, or whoever starts after a crash, sees a whole file or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace deltafin {

// A file that appears under its path only when it is complete and on the disk. Until then its bytes
// are in PATH.tmp, which the destructor removes unless Commit was called; a process that is killed
// leaves it behind, and the next one overwrites it. One writer per path at a time (FolderLock).
// All functions throw Error(kIo) naming the file and what the system said.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // The file has so many bytes, zeros where nothing is written; zeros that are never written take
  // no room on the disk.
  void Resize(uint64_t bytes);
  // Positional; what lies between the writes is zero.
  void WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // Waits until the bytes are on the disk, then renames. Nothing may be written afterwards.
  void Commit();
  // Renames without waiting: survives the end of the process, but after a power failure the file
  // may hold anything. For what is checked when it is read, and can be made again.
  void CommitUnsynced();

 private:
  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
};

// Held by one process at a time, through the file FOLDER/lock; given up also by a process that
// dies. Throws Error(kIo) when another process has it.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

// Creates a folder and its parents; one that is there is fine. Throws Error(kIo).
void MakeFolders(const std::string& folder);
// What may still be written to the file system of `folder`, which exists. Throws Error(kIo).
uint64_t FreeDiskBytes(const std::string& folder);
// What a file takes on its disk: of a sparse file less than its size. 0 where the system does not
// say.
uint64_t DiskBytesOf(const std::string& path) noexcept;
// Does nothing when there is no such file. Throws Error(kIo).
void RemoveFile(const std::string& path);

}  // namespace deltafin
