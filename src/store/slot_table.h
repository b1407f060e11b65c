// Which expert lies in which slot, and which slot to give up next.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

namespace deltafin {

// Maps keys to slots 0 .. num_slots - 1 with least-recently-used eviction. A slot is free, or it
// holds a key and is pinned (in use) or unpinned (may be evicted). Not thread-safe.
class SlotTable {
 public:
  using Slot = int32_t;

  explicit SlotTable(int64_t num_slots);

  // The slot that holds `key`.
  std::optional<Slot> Find(int64_t key) const;
  // A slot for `key`, which no slot holds: a free one, else the least recently used unpinned one,
  // which loses its key. Pinned. Empty when all slots are pinned.
  [[nodiscard]] std::optional<Slot> Claim(int64_t key);
  // `slot` is unpinned.
  void Pin(Slot slot);
  // `slot` is pinned. It becomes the most recently used one.
  void Unpin(Slot slot);
  // `slot` is pinned. It becomes free: its content is not the key's.
  void Forget(Slot slot);

  // All invariants of the structure, for tests.
  bool IsConsistent() const;

 private:
  struct Entry {
    int64_t key = -1;
    bool used = false;
    bool pinned = false;
    std::list<Slot>::iterator in_unpinned;
  };

  std::vector<Entry> entries_;
  std::vector<Slot> free_;
  std::list<Slot> unpinned_;  // least recently used first
  std::unordered_map<int64_t, Slot> slot_of_;
};

}  // namespace deltafin
