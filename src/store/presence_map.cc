#include "store/presence_map.h"

#include <algorithm>

#include "base/check.h"

namespace deltafin {

PresenceMap::Ranges::const_iterator PresenceMap::FirstAfter(uint64_t offset) const {
  auto it = ranges_.upper_bound(offset);
  if (it == ranges_.begin()) return it;
  const auto before = std::prev(it);
  return before->first + before->second.bytes > offset ? before : it;
}

bool PresenceMap::Add(const PresentRange& range) {
  if (range.bytes == 0 || range.offset > file_bytes_) return false;
  if (range.bytes > file_bytes_ - range.offset) return false;
  const auto next = FirstAfter(range.offset);
  if (next != ranges_.end() && next->first < range.end()) return false;
  ranges_.emplace(range.offset, Entry{range.bytes, range.checksum});
  bytes_at_.emplace(range.offset, range.bytes);
  present_bytes_ += range.bytes;
  return true;
}

std::vector<PresentRange> PresenceMap::Remove(ByteRange range) {
  std::vector<PresentRange> removed;
  auto it = FirstAfter(range.offset);
  while (it != ranges_.end() && it->first < range.end()) {
    removed.push_back({it->first, it->second.bytes, it->second.checksum});
    present_bytes_ -= it->second.bytes;
    bytes_at_.erase(it->first);
    it = ranges_.erase(it);
  }
  return removed;
}

bool PresenceMap::Contains(ByteRange range) const {
  if (complete()) return range.end() <= file_bytes_;
  const auto exact = bytes_at_.find(range.offset);
  if (exact != bytes_at_.end() && exact->second >= range.bytes) return true;
  return MissingBytes(range) == 0;
}

std::vector<ByteRange> PresenceMap::Missing(ByteRange range) const {
  std::vector<ByteRange> missing;
  uint64_t at = range.offset;
  for (auto it = FirstAfter(at); at < range.end(); ++it) {
    const uint64_t next = it == ranges_.end() ? range.end() : std::min(it->first, range.end());
    if (next > at) missing.push_back({at, next - at});
    if (it == ranges_.end()) break;
    at = it->first + it->second.bytes;
  }
  return missing;
}

uint64_t PresenceMap::MissingBytes(ByteRange range) const {
  uint64_t bytes = 0;
  for (const ByteRange& gap : Missing(range)) bytes += gap.bytes;
  return bytes;
}

std::vector<PresentRange> PresenceMap::ranges() const {
  std::vector<PresentRange> all;
  all.reserve(ranges_.size());
  for (const auto& [offset, entry] : ranges_) all.push_back({offset, entry.bytes, entry.checksum});
  return all;
}

void PresenceMap::CheckInvariants() const {
  DF_CHECK(bytes_at_.size() == ranges_.size());
  uint64_t end = 0;
  uint64_t total = 0;
  for (const auto& [offset, entry] : ranges_) {
    DF_CHECK(offset >= end && entry.bytes > 0);
    end = offset + entry.bytes;
    total += entry.bytes;
    const auto exact = bytes_at_.find(offset);
    DF_CHECK(exact != bytes_at_.end() && exact->second == entry.bytes);
  }
  DF_CHECK(end <= file_bytes_ && total == present_bytes_);
}

}  // namespace deltafin
