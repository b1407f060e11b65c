#include "base/buffer.h"

#include <sys/mman.h>

namespace deltafin {

void AdviseHugePages([[maybe_unused]] void* begin, [[maybe_unused]] size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  // Whole huge pages only: the rest of the last one belongs to other allocations.
  const size_t whole = bytes / kHugePageBytes * kHugePageBytes;
  if (whole > 0) madvise(begin, whole, MADV_HUGEPAGE);
#endif
}

}  // namespace deltafin
