// Sets of bytes of an address space, as ranges that neither touch nor overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace deltafin {

class ByteSet {
 public:
  void Add(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second >= begin) --next;
    while (next != ranges_.end() && next->first <= end) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = ranges_.erase(next);
    }
    ranges_.emplace_hint(next, begin, end);
  }
  void Remove(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    auto range = FirstOver(begin);
    while (range != ranges_.end() && range->first < end) {
      const auto [first, last] = *range;
      range = ranges_.erase(range);
      if (first < begin) ranges_.emplace(first, begin);
      if (last > end) ranges_.emplace(end, last);
    }
  }
  bool Overlaps(uint64_t begin, uint64_t end) const {
    const auto range = FirstOver(begin);
    return begin < end && range != ranges_.end() && range->first < end;
  }
  bool Contains(uint64_t begin, uint64_t end) const {
    const auto range = FirstOver(begin);
    return begin >= end ||
           (range != ranges_.end() && range->first <= begin && end <= range->second);
  }
  uint64_t TotalBytes() const {
    uint64_t bytes = 0;
    for (const auto& [begin, end] : ranges_) bytes += end - begin;
    return bytes;
  }
  bool IsEmpty() const { return ranges_.empty(); }
  void Clear() { ranges_.clear(); }
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }  // begin, end

 private:
  // The first range that ends after `begin`.
  std::map<uint64_t, uint64_t>::const_iterator FirstOver(uint64_t begin) const {
    auto range = ranges_.upper_bound(begin);
    if (range != ranges_.begin() && std::prev(range)->second > begin) --range;
    return range;
  }

  std::map<uint64_t, uint64_t> ranges_;
};

}  // namespace deltafin
