// Memory for weights: aligned and, unlike AlignedBuffer, not filled first. A layer of the release
// is 1.3 GB that a read overwrites at once.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace deltafin {

struct FreeBytes {
  void operator()(std::byte* p) const noexcept { std::free(p); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeBytes>;

// At least `bytes` bytes, not initialised, at a multiple of `alignment` (a power of two). Throws
// std::bad_alloc.
inline AlignedBytes AllocateAligned(size_t bytes, size_t alignment) {
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (p == nullptr) throw std::bad_alloc();
  return AlignedBytes(static_cast<std::byte*>(p));
}

}  // namespace deltafin
