#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace deltafin {

void CheckFailed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "deltafin: internal error: %s does not hold (%s:%d)\n", condition, file,
               line);
  std::abort();
}

}  // namespace deltafin
