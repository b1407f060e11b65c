#include "hub/disk_space.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"

namespace deltafin {

uint64_t DiskMargin(uint64_t model_bytes) {
  constexpr uint64_t kMaxMargin = 10'000'000'000;
  return std::min(kMaxMargin, model_bytes / 100);
}

DiskSpace::DiskSpace(const std::vector<std::string>& folders, const FreeBytesOf& free_bytes_of)
    : folders_(folders) {
  DF_CHECK(!folders.empty());
  for (const std::string& folder : folders_) {
    struct stat status = {};
    if (::stat(folder.c_str(), &status) != 0) {
      throw Error(ErrorCode::kIo,
                  format("{}: cannot look at it: {}", folder,
                         std::error_code(errno, std::generic_category()).message()));
    }
    const auto device = static_cast<uint64_t>(status.st_dev);
    const auto it = std::find_if(disks_.begin(), disks_.end(),
                                 [&](const Disk& disk) { return disk.device == device; });
    disk_of_.push_back(static_cast<size_t>(it - disks_.begin()));
    if (it == disks_.end()) disks_.push_back({device, free_bytes_of(folder), 0});
  }
}

DiskSpace::Disk& DiskSpace::DiskOf(const std::string& folder) {
  const auto it = std::find(folders_.begin(), folders_.end(), folder);
  DF_CHECK(it != folders_.end());
  return disks_[disk_of_[static_cast<size_t>(it - folders_.begin())]];
}

std::string DiskSpace::Place(uint64_t bytes) {
  const std::string* best = &folders_[0];
  for (const std::string& folder : folders_) {
    if (DiskOf(folder).room() >= bytes) {
      best = &folder;
      break;
    }
    if (DiskOf(folder).room() > DiskOf(*best).room()) best = &folder;
  }
  Take(*best, bytes);
  return *best;
}

void DiskSpace::Take(const std::string& folder, uint64_t bytes) { DiskOf(folder).taken += bytes; }

uint64_t DiskSpace::FreeBytes(uint64_t margin) const {
  uint64_t free = 0;
  for (const Disk& disk : disks_) free += disk.free > margin ? disk.free - margin : 0;
  return free;
}

uint64_t DiskSpace::LackingBytes(uint64_t margin) const {
  uint64_t lacking = 0;
  for (const Disk& disk : disks_) {
    const uint64_t needed = disk.taken == 0 ? 0 : disk.taken + margin;
    lacking += needed > disk.free ? needed - disk.free : 0;
  }
  return lacking;
}

}  // namespace deltafin
