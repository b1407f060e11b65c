#include <algorithm>
#include <thread>

#include "base/thread_pool.h"

namespace deltafin {

// macOS gives no process fewer processors than there are.
int UsableProcessors() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace deltafin
