// Memory straight from the system: given back at once when it is freed, which a heap does not do.
#pragma once

#include <cstddef>
#include <utility>

namespace deltafin {

// Whole pages, zero-filled when first touched; what was never touched takes no RAM.
class PageBuffer {
 public:
  PageBuffer() = default;
  // Throws Error(kOutOfMemory).
  explicit PageBuffer(size_t bytes);
  ~PageBuffer() { Reset(); }
  PageBuffer(PageBuffer&& other) noexcept { *this = std::move(other); }
  PageBuffer& operator=(PageBuffer&& other) noexcept {
    if (this != &other) {
      Reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  void Reset() noexcept;

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Makes the heap keep little of what is freed: from now on large blocks come from the system one by
// one, and all threads share one arena. For the whole process; no effect where the C library has no
// such settings.
void KeepHeapSmall() noexcept;
// Gives back what the heap holds and nobody uses.
void TrimHeap() noexcept;

}  // namespace deltafin
