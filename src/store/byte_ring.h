// A ring of bytes from which blocks are taken and given back in the same order.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "base/check.h"

namespace deltafin {

// Hands out offsets [0, capacity); a block never wraps. Not thread-safe.
class ByteRing {
 public:
  explicit ByteRing(size_t capacity) : capacity_(capacity) {}

  // The offset of a block of `bytes` (at least 1); empty when it does not fit now. A block of at
  // most the capacity always fits an empty ring.
  [[nodiscard]] std::optional<size_t> Claim(size_t bytes) {
    DF_CHECK(bytes > 0);
    size_t begin = 0;
    if (!blocks_.empty()) {
      const size_t oldest = blocks_.front().begin;
      const size_t end = blocks_.back().end;
      const bool wrapped = blocks_.back().begin < oldest;
      if (end + bytes <= (wrapped ? oldest : capacity_)) {
        begin = end;
      } else if (wrapped || bytes > oldest) {
        return std::nullopt;
      }
    } else if (bytes > capacity_) {
      return std::nullopt;
    }
    blocks_.push_back({begin, begin + bytes});
    return begin;
  }
  void FreeOldest() {
    DF_CHECK(!blocks_.empty());
    blocks_.pop_front();
  }

  size_t capacity() const { return capacity_; }
  bool empty() const { return blocks_.empty(); }

 private:
  struct Block {
    size_t begin;
    size_t end;
  };
  const size_t capacity_;
  std::deque<Block> blocks_;
};

}  // namespace deltafin
