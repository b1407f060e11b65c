// How much memory this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace deltafin {

struct MemoryLimits {
  uint64_t physical_bytes = 0;   // of the machine
  uint64_t available_bytes = 0;  // of those, free or reclaimable now
  // The smallest limit that binds this process: physical memory and, on Linux, every cgroup (v1 and
  // v2) from its own up to the root, RLIMIT_AS and RLIMIT_DATA.
  uint64_t limit_bytes = 0;
  std::string limited_by;  // "physical memory", "cgroup /a/b", "RLIMIT_AS"
};

// `root` stands before every path that is read: tests lay out their own /proc and /sys below it
// (macOS reads none).
// Limits that cannot be read do not bind.
MemoryLimits ReadMemoryLimits(const std::string& root = "");

// What this process uses; 0 where the system does not say.
struct ProcessMemory {
  uint64_t resident_bytes = 0;
  uint64_t peak_resident_bytes = 0;
  uint64_t virtual_bytes = 0;  // what RLIMIT_AS counts
};

ProcessMemory ReadProcessMemory(const std::string& root = "");

}  // namespace deltafin
