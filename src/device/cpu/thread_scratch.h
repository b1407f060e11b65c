// Scratch memory of a device: grown once, reused by every call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"

namespace deltafin {

// An array that keeps its largest size. The contents are lost when it grows.
class GrowingBuffer {
 public:
  // At least `count` floats. Throws Error(kOutOfMemory).
  float* Reserve(int64_t count) {
    if (static_cast<size_t>(count) > buffer_.size()) {
      buffer_ = {};
      try {
        buffer_ = AlignedBuffer<float>(static_cast<size_t>(count));
      } catch (const std::bad_alloc&) {
        throw Error(
            ErrorCode::kOutOfMemory,
            format("The system has no {} bytes of memory left for the work of one operator; "
                   "use a smaller memory budget.",
                   count * 4));
      }
    }
    return buffer_.data();
  }
  float* data() { return buffer_.data(); }

 private:
  AlignedBuffer<float> buffer_;
};

// One buffer for each thread of a parallel loop, whose bodies do not know their thread.
class ThreadScratch {
  struct Slot {
    std::atomic<bool> taken{false};
    GrowingBuffer buffer;
  };

 public:
  explicit ThreadScratch(int num_threads) : slots_(static_cast<size_t>(num_threads)) {}

  // Before a loop: every lease has at least `count` floats.
  void Reserve(int64_t count) {
    for (Slot& slot : slots_) slot.buffer.Reserve(count);
    reserved_ = count;
  }

  // Inside a loop's body: memory that no other body uses.
  class Lease {
   public:
    explicit Lease(ThreadScratch& owner) {
      for (size_t i = 0;; i = (i + 1) % owner.slots_.size()) {
        Slot& slot = owner.slots_[i];
        if (!slot.taken.exchange(true, std::memory_order_acquire)) {
          slot_ = &slot;
          data_ = slot.buffer.Reserve(owner.reserved_);
          return;
        }
      }
    }
    ~Lease() { slot_->taken.store(false, std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    float* data() const { return data_; }

   private:
    Slot* slot_ = nullptr;
    float* data_ = nullptr;
  };

 private:
  std::vector<Slot> slots_;
  int64_t reserved_ = 0;
};

}  // namespace deltafin
