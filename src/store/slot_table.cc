#include "store/slot_table.h"

#include <algorithm>

#include "base/check.h"

namespace deltafin {

SlotTable::SlotTable(int64_t num_slots) : entries_(static_cast<size_t>(num_slots)) {
  free_.reserve(entries_.size());
  for (size_t slot = entries_.size(); slot-- > 0;) free_.push_back(static_cast<Slot>(slot));
}

std::optional<SlotTable::Slot> SlotTable::Find(int64_t key) const {
  const auto it = slot_of_.find(key);
  if (it == slot_of_.end()) return std::nullopt;
  return it->second;
}

std::optional<SlotTable::Slot> SlotTable::Claim(int64_t key) {
  Slot slot = 0;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (!unpinned_.empty()) {
    slot = unpinned_.front();
    unpinned_.pop_front();
    slot_of_.erase(entries_[static_cast<size_t>(slot)].key);
  } else {
    return std::nullopt;
  }
  const bool inserted = slot_of_.emplace(key, slot).second;
  DF_CHECK(inserted);
  Entry& entry = entries_[static_cast<size_t>(slot)];
  entry.key = key;
  entry.used = true;
  entry.pinned = true;
  return slot;
}

void SlotTable::Pin(Slot slot) {
  Entry& entry = entries_[static_cast<size_t>(slot)];
  DF_CHECK(entry.used && !entry.pinned);
  unpinned_.erase(entry.in_unpinned);
  entry.pinned = true;
}

void SlotTable::Unpin(Slot slot) {
  Entry& entry = entries_[static_cast<size_t>(slot)];
  DF_CHECK(entry.used && entry.pinned);
  entry.in_unpinned = unpinned_.insert(unpinned_.end(), slot);
  entry.pinned = false;
}

void SlotTable::Forget(Slot slot) {
  Entry& entry = entries_[static_cast<size_t>(slot)];
  DF_CHECK(entry.used && entry.pinned);
  slot_of_.erase(entry.key);
  entry.used = false;
  entry.pinned = false;
  free_.push_back(slot);
}

bool SlotTable::IsConsistent() const {
  size_t num_used = 0;
  size_t num_unpinned = 0;
  for (size_t slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    if (!entry.used) {
      if (std::count(free_.begin(), free_.end(), static_cast<Slot>(slot)) != 1) return false;
      continue;
    }
    ++num_used;
    if (Find(entry.key) != static_cast<Slot>(slot)) return false;
    if (entry.pinned) continue;
    ++num_unpinned;
    if (*entry.in_unpinned != static_cast<Slot>(slot)) return false;
  }
  return num_used == slot_of_.size() && num_unpinned == unpinned_.size() &&
         num_used + free_.size() == entries_.size();
}

}  // namespace deltafin
