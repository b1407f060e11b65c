#include "engine/bench_machine.h"

#include <fstream>
#include <string>

#include "base/thread_pool.h"
#include "io/memory_limits.h"

namespace deltafin {
namespace {

std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "model name : X" of /proc/cpuinfo; Arm has no such line.
std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t value = line.find(": ");
    if (value != std::string::npos) return line.substr(value + 2);
  }
  return "";
}

constexpr const char* Architecture() {
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "other";
#endif
}

}  // namespace

BenchMachine DescribeMachine() {
  const MemoryLimits limits = ReadMemoryLimits();
  return {CpuName(),          Architecture(),    UsableProcessors(),
          limits.limit_bytes, limits.limited_by, FirstLine("/proc/sys/kernel/osrelease")};
}

}  // namespace deltafin
