// Which expert lies in which slot.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "store/eviction_policy.h"

namespace deltafin {

// Maps keys to slots 0 .. num_slots - 1. A slot is free, or it holds a key and is pinned (in use)
// or unpinned (may be evicted, when the policy says so). Not thread-safe.
class SlotTable {
 public:
  using Slot = int32_t;

  // `policy` must outlive the table, and serve no other.
  SlotTable(int64_t num_slots, EvictionPolicy& policy);

  // The slot that holds `key`.
  std::optional<Slot> Find(ExpertKey key) const;
  // A slot for `key`, which no slot holds: a free one, else an unneeded one, else the policy's
  // victim, which loses its key. Pinned. Empty when all slots are pinned.
  [[nodiscard]] std::optional<Slot> Claim(ExpertKey key);
  // `slot` is unpinned.
  void Pin(Slot slot);
  // `slot` is pinned.
  void Unpin(Slot slot);
  // The same for one that was read and never used: it is evicted before all others.
  void UnpinUnneeded(Slot slot);
  // `slot` is pinned. It becomes free: its content is not the key's.
  void Forget(Slot slot);

  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  // The next Claim takes nobody's place.
  bool has_spare() const { return !free_.empty() || !unneeded_.empty(); }

  // All invariants of the structure, for tests.
  bool IsConsistent() const;

 private:
  enum class Use : uint8_t { kFree, kPinned, kOffered, kUnneeded };
  struct Entry {
    ExpertKey key = -1;
    Use use = Use::kFree;
    std::list<Slot>::iterator in_unneeded;
  };

  EvictionPolicy& policy_;
  std::vector<Entry> entries_;
  std::vector<Slot> free_;
  std::list<Slot> unneeded_;  // oldest first
  std::unordered_map<ExpertKey, Slot> slot_of_;
};

}  // namespace deltafin
