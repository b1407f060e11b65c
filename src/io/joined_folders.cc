#include "io/joined_folders.h"

namespace deltafin {

std::string JoinedFolders::Find(const std::string& path) const {
  const std::string prefix = JoinPath(dir_, "");
  if (others_.empty() || !path.starts_with(prefix) || base_.Exists(path)) return path;
  const std::string name = path.substr(prefix.size());
  if (name.find('/') != std::string::npos) return path;  // only the files of the release
  for (const std::string& other : others_) {
    if (std::string there = JoinPath(other, name); base_.Exists(there)) return there;
  }
  return path;
}

}  // namespace deltafin
