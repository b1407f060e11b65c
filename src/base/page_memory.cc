#include "base/page_memory.h"

#include <sys/mman.h>

#include <cstdlib>

#include "base/format.h"
#include "deltafin/error.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace deltafin {

PageBuffer::PageBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory,
                format("the system has no {} bytes of memory left; use a smaller --ram", bytes));
  }
  data_ = static_cast<std::byte*>(p);
}

void PageBuffer::Reset() noexcept {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

void KeepHeapSmall() noexcept {
#ifdef __GLIBC__
  // Left alone, glibc raises the threshold to the size of the largest block freed (up to 32 MiB)
  // and then keeps blocks below it; and each thread that allocates gets an arena of its own.
  constexpr int kLargeBlockBytes = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kLargeBlockBytes);
  mallopt(M_TRIM_THRESHOLD, kLargeBlockBytes);
  mallopt(M_ARENA_MAX, 1);
#endif
}

void TrimHeap() noexcept {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace deltafin
