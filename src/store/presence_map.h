// Which bytes of a shard are on the disk and verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace deltafin {

struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;

  uint64_t end() const { return offset + bytes; }
  bool operator==(const ByteRange&) const = default;
};

// A range that was fetched as one, and the XXH3 of its bytes.
struct PresentRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;

  uint64_t end() const { return offset + bytes; }
  bool operator==(const PresentRange&) const = default;
};

// Disjoint ranges of one file. Not thread-safe.
class PresenceMap {
 public:
  explicit PresenceMap(uint64_t file_bytes) : file_bytes_(file_bytes) {}

  uint64_t file_bytes() const { return file_bytes_; }
  uint64_t present_bytes() const { return present_bytes_; }
  bool complete() const { return present_bytes_ == file_bytes_; }
  size_t num_ranges() const { return ranges_.size(); }

  // False, and nothing changes, when the range is empty, leaves the file or touches bytes that are
  // present.
  [[nodiscard]] bool Add(const PresentRange& range);
  // Removes every range that has a byte in common with this one; returns them.
  std::vector<PresentRange> Remove(ByteRange range);

  // O(1) for a range that was added as such, and in a complete file.
  bool Contains(ByteRange range) const;
  // What is not present of a range, in order.
  std::vector<ByteRange> Missing(ByteRange range) const;
  uint64_t MissingBytes(ByteRange range) const;
  // In order of offset.
  std::vector<PresentRange> ranges() const;

  // All invariants, for tests.
  void CheckInvariants() const;

 private:
  struct Entry {
    uint64_t bytes = 0;
    uint64_t checksum = 0;
  };
  using Ranges = std::map<uint64_t, Entry>;  // by offset

  // The first range that ends after `offset`.
  Ranges::const_iterator FirstAfter(uint64_t offset) const;

  uint64_t file_bytes_;
  uint64_t present_bytes_ = 0;
  Ranges ranges_;
  std::unordered_map<uint64_t, uint64_t> bytes_at_;  // of the range that begins there
};

}  // namespace deltafin
