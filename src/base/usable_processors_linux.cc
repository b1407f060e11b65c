#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <thread>

#include "base/cgroup.h"
#include "base/thread_pool.h"

namespace deltafin {
namespace {

int AffinityProcessors() {
  // The kernel refuses a mask that is smaller than its own.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(cpus));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const int result = sched_getaffinity(0, bytes, set);
    const int error = errno;
    const int count = result == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (result == 0) return std::max(1, count);
    if (error != EINVAL) break;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

int UsableProcessors() {
  const int processors = AffinityProcessors();
  const double quota = std::ceil(CgroupCpuQuota());  // rounded up: a half is time that we may use
  return quota < processors ? std::max(1, static_cast<int>(quota)) : processors;
}

}  // namespace deltafin
