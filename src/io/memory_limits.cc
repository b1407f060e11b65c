#include "io/memory_limits.h"

#include <sys/resource.h>

#include <charconv>
#include <fstream>
#include <sstream>
#include <vector>

namespace deltafin {
namespace {

// First number of a one-line file; 0 when there is none ("max", absent).
uint64_t ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  if (file >> word) std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

void ReadMeminfo(const std::string& root, MemoryLimits& limits) {
  std::ifstream file(root + "proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    uint64_t kib = 0;
    words >> key >> kib;
    if (key == "MemTotal:") limits.physical_bytes = kib * 1024;
    if (key == "MemAvailable:") limits.available_bytes = kib * 1024;
  }
}

void Tighten(MemoryLimits& limits, uint64_t bytes, const std::string& why) {
  if (bytes == 0 || bytes >= limits.limit_bytes) return;
  limits.limit_bytes = bytes;
  limits.limited_by = why;
}

// Walks from `path` up to the root of the hierarchy mounted at `mount`.
void TightenByCgroup(MemoryLimits& limits, const std::string& mount, std::string path,
                     const std::string& file) {
  while (true) {
    Tighten(limits, ReadNumber(mount + path + "/" + file), "cgroup " + (path.empty() ? "/" : path));
    if (path.empty()) return;
    path.resize(path.find_last_of('/'));
  }
}

// Lines of /proc/self/cgroup: "hierarchy:controllers:/path".
void ReadCgroups(const std::string& root, MemoryLimits& limits) {
  std::ifstream file(root + "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (path == "/") path.clear();
    if (controllers.empty()) {
      TightenByCgroup(limits, root + "sys/fs/cgroup", path, "memory.max");
      TightenByCgroup(limits, root + "sys/fs/cgroup/unified", path, "memory.max");
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      TightenByCgroup(limits, root + "sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
    }
  }
}

void ReadResourceLimit(MemoryLimits& limits, decltype(RLIMIT_AS) which, const char* name) {
  rlimit limit{};
  if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  Tighten(limits, limit.rlim_cur, name);
}

}  // namespace

MemoryLimits ReadMemoryLimits(const std::string& root) {
  MemoryLimits limits;
  ReadMeminfo(root, limits);
  limits.limit_bytes = limits.physical_bytes;
  limits.limited_by = "physical memory";
  ReadCgroups(root, limits);
  ReadResourceLimit(limits, RLIMIT_AS, "RLIMIT_AS");
  ReadResourceLimit(limits, RLIMIT_DATA, "RLIMIT_DATA");
  return limits;
}

}  // namespace deltafin
