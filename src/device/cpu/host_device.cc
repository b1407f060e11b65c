#include "device/cpu/host_device.h"

#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/buffer.h"
#include "base/format.h"
#include "deltafin/error.h"

namespace deltafin {

void* HostDevice::Allocate(size_t bytes) {
  constexpr size_t kAlignment = 64;  // a cache line and the widest vector
  void* address = nullptr;
  size_t rounded = 0;
  if (bytes <= std::numeric_limits<size_t>::max() / 2) {
    rounded = (bytes == 0 ? 1 : (bytes + kAlignment - 1) / kAlignment) * kAlignment;
    const bool huge = rounded >= 4 * kHugePageBytes;
    // aligned_alloc would want a multiple of the alignment.
    if (posix_memalign(&address, huge ? kHugePageBytes : kAlignment, rounded) != 0) {
      address = nullptr;
    }
    if (huge && address != nullptr) AdviseHugePages(address, rounded);
  }
  if (address == nullptr) {
    throw Error(ErrorCode::kOutOfMemory,
                format("The system has no {} bytes of memory left; use a smaller memory budget "
                       "or a shorter context.",
                       bytes));
  }
  std::memset(address, 0, rounded);
  return address;
}

void HostDevice::Free(void* address) noexcept { std::free(address); }

void HostDevice::ToHost(void* host_dst, const void* src, size_t bytes) {
  Copy(host_dst, src, bytes);
}

void HostDevice::ToDevice(void* dst, const void* host_src, size_t bytes) {
  Copy(dst, host_src, bytes);
}

void HostDevice::Copy(void* dst, const void* src, size_t bytes) {
  if (bytes > 0) std::memmove(dst, src, bytes);
}

}  // namespace deltafin
