// Aligned memory that is owned and not initialised on every resize.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/check.h"

namespace deltafin {

// At least this large, a buffer is made of huge pages where the system lets us. Weights are read
// once from end to end, and with 4 KiB pages address translation takes a third of the time
// (docs/performance.md).
inline constexpr size_t kHugePageBytes = size_t{2} << 20;
// A hint; never fails.
void AdviseHugePages(void* begin, size_t bytes) noexcept;

// A block of `size` objects of a trivial type at a multiple of 64 bytes (a cache line and the
// widest vector). Zero-filled. Throws std::bad_alloc.
template <class T, size_t kAlignment = 64>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size) : size_(size) {
    if (size == 0) return;
    const bool huge = size * sizeof(T) >= 4 * kHugePageBytes;
    const size_t alignment = huge ? kHugePageBytes : kAlignment;
    const size_t bytes = (size * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    void* p = nullptr;  // aligned_alloc would want a multiple of the alignment
    if (posix_memalign(&p, alignment, bytes) != 0) throw std::bad_alloc();
    if (huge) AdviseHugePages(p, bytes);
    __builtin_memset(p, 0, bytes);
    data_.reset(static_cast<T*>(p));
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  size_t size_bytes() const { return size_ * sizeof(T); }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace deltafin
