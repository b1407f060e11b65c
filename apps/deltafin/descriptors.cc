#include "descriptors.h"

#include <sys/resource.h>

#include <climits>

namespace deltafin {

uint64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return UINT64_MAX;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
#ifdef __APPLE__
  if (limit.rlim_cur > OPEN_MAX) limit.rlim_cur = OPEN_MAX;  // more is refused
#endif
  if (limit.rlim_cur < before || setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

}  // namespace deltafin
