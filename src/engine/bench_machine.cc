#include "engine/bench_machine.h"

#include "base/thread_pool.h"
#include "io/machine_name.h"
#include "io/memory_limits.h"

namespace deltafin {
namespace {

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
          limits.limit_bytes, limits.limited_by, KernelRelease()};
}

}  // namespace deltafin
