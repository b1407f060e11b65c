#include <sys/resource.h>

#include <charconv>
#include <fstream>
#include <sstream>

#include "base/cgroup.h"
#include "io/memory_limits.h"

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
  std::ifstream file(root + "/proc/meminfo");
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

void ReadCgroups(const std::string& root, MemoryLimits& limits) {
  for (const CgroupFolder& folder : CgroupFolders("memory", root)) {
    const auto tighten = [&](const char* file) {
      Tighten(limits, ReadNumber(folder.path + "/" + file), "cgroup " + folder.path);
    };
    tighten(folder.version == 2 ? "memory.max" : "memory.limit_in_bytes");
    // Who is above it hardly gets on any more.
    if (folder.version == 2) tighten("memory.high");
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

ProcessMemory ReadProcessMemory(const std::string& root) {
  ProcessMemory memory;
  std::ifstream file(root + "/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    uint64_t kib = 0;
    words >> key >> kib;
    if (key == "VmRSS:") memory.resident_bytes = kib * 1024;
    if (key == "VmHWM:") memory.peak_resident_bytes = kib * 1024;
    if (key == "VmSize:") memory.virtual_bytes = kib * 1024;
  }
  return memory;
}

}  // namespace deltafin
