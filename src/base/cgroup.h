// The control groups that this process lives in, versions 1 and 2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deltafin {

// A group's folder, and which version's files lie in it.
struct CgroupFolder {
  std::string path;
  int version = 2;
};

// The folders that limit `controller` ("cpu", "memory") for this process: its own group, then each
// parent up to the mount point; a limit of any of them counts. Empty without control groups. `root`
// stands before every path that is read (tests).
std::vector<CgroupFolder> CgroupFolders(std::string_view controller, const std::string& root = "");

// How many processors' worth of time the CPU quotas on the path allow; infinity without a quota.
double CgroupCpuQuota(const std::string& root = "");

}  // namespace deltafin
