// The room on the disks that hold a model's folders.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace deltafin {

// What stays free: for others, and for what the file system itself writes. 10 GB for the release,
// less for small models.
uint64_t DiskMargin(uint64_t model_bytes);

// Folders on one disk share its room. Not thread-safe.
class DiskSpace {
 public:
  // What the disk of a folder has left.
  using FreeBytesOf = std::function<uint64_t(const std::string&)>;

  // The folders exist. Throws Error(kIo).
  DiskSpace(const std::vector<std::string>& folders, const FreeBytesOf& free_bytes_of);

  // The folder for a new file: the first that has room for it, else the one with most room. Takes
  // the room.
  std::string Place(uint64_t bytes);
  // Something will be written to the folder.
  void Take(const std::string& folder, uint64_t bytes);
  // The room of all disks at the beginning, less a margin on each.
  uint64_t FreeBytes(uint64_t margin) const;
  // By how much what was taken exceeds the room, with a margin on each disk.
  uint64_t LackingBytes(uint64_t margin) const;

 private:
  struct Disk {
    uint64_t device = 0;
    uint64_t free = 0;
    uint64_t taken = 0;
    uint64_t room() const { return free > taken ? free - taken : 0; }
  };
  Disk& DiskOf(const std::string& folder);

  std::vector<std::string> folders_;
  std::vector<size_t> disk_of_;  // each folder's
  std::vector<Disk> disks_;
};

}  // namespace deltafin
