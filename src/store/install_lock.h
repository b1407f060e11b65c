// Who may change a model folder: one process fills it, any number read it, none frees what others
// may be reading.
#pragma once

#include <optional>
#include <string>

#include "io/sparse_file.h"

namespace deltafin {

class InstallLock {
 public:
  // The right to fill the folder's shards; what others read stays as it is. Empty when another
  // process has it.
  static std::optional<InstallLock> TryFill(const std::string& dir);
  // The right to use what is there while this lives. A folder without .deltafin/presence, which
  // nobody frees, needs none. Throws Error(kIo) while another process is freeing or replacing
  // parts.
  static std::optional<InstallLock> Use(const std::string& dir);
  // The right to free and replace: nobody else fills or uses the folder. Throws Error(kIo) saying
  // who does.
  static InstallLock Own(const std::string& dir);
  // "another process (PID) is filling DIR".
  static std::string FillerOf(const std::string& dir);

 private:
  InstallLock(std::optional<FileLock> fill, std::optional<FileLock> use)
      : fill_(std::move(fill)), use_(std::move(use)) {}
  std::optional<FileLock> fill_;
  std::optional<FileLock> use_;
};

}  // namespace deltafin
