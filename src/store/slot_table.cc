#include "store/slot_table.h"

#include <algorithm>

#include "base/check.h"

namespace deltafin {

SlotTable::SlotTable(int64_t num_slots, EvictionPolicy& policy)
    : policy_(policy), entries_(static_cast<size_t>(num_slots)) {
  free_.reserve(entries_.size());
  for (size_t slot = entries_.size(); slot-- > 0;) free_.push_back(static_cast<Slot>(slot));
}

std::optional<SlotTable::Slot> SlotTable::Find(ExpertKey key) const {
  const auto it = slot_of_.find(key);
  if (it == slot_of_.end()) return std::nullopt;
  return it->second;
}

std::optional<SlotTable::Slot> SlotTable::Claim(ExpertKey key) {
  Slot slot = 0;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (!unneeded_.empty()) {
    slot = unneeded_.front();
    unneeded_.pop_front();
    slot_of_.erase(entries_[static_cast<size_t>(slot)].key);
  } else if (const auto victim = policy_.Victim()) {
    policy_.Withdraw(*victim);
    const auto it = slot_of_.find(*victim);
    DF_CHECK(it != slot_of_.end());
    slot = it->second;
    slot_of_.erase(it);
  } else {
    return std::nullopt;
  }
  const bool inserted = slot_of_.emplace(key, slot).second;
  DF_CHECK(inserted);
  Entry& entry = entries_[static_cast<size_t>(slot)];
  entry.key = key;
  entry.use = Use::kPinned;
  return slot;
}

void SlotTable::Pin(Slot slot) {
  Entry& entry = entries_[static_cast<size_t>(slot)];
  if (entry.use == Use::kUnneeded) {
    unneeded_.erase(entry.in_unneeded);
  } else {
    DF_CHECK(entry.use == Use::kOffered);
    policy_.Withdraw(entry.key);
  }
  entry.use = Use::kPinned;
}

void SlotTable::Unpin(Slot slot) {
  Entry& entry = entries_[static_cast<size_t>(slot)];
  DF_CHECK(entry.use == Use::kPinned);
  policy_.Offer(entry.key);
  entry.use = Use::kOffered;
}

void SlotTable::UnpinUnneeded(Slot slot) {
  Entry& entry = entries_[static_cast<size_t>(slot)];
  DF_CHECK(entry.use == Use::kPinned);
  entry.in_unneeded = unneeded_.insert(unneeded_.end(), slot);
  entry.use = Use::kUnneeded;
}

void SlotTable::Forget(Slot slot) {
  Entry& entry = entries_[static_cast<size_t>(slot)];
  DF_CHECK(entry.use == Use::kPinned);
  slot_of_.erase(entry.key);
  entry.use = Use::kFree;
  free_.push_back(slot);
}

bool SlotTable::IsConsistent() const {
  size_t num_used = 0;
  size_t num_unneeded = 0;
  for (size_t slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.use == Use::kFree) {
      if (std::count(free_.begin(), free_.end(), static_cast<Slot>(slot)) != 1) return false;
      continue;
    }
    ++num_used;
    if (Find(entry.key) != static_cast<Slot>(slot)) return false;
    if (entry.use != Use::kUnneeded) continue;
    ++num_unneeded;
    if (*entry.in_unneeded != static_cast<Slot>(slot)) return false;
  }
  return num_used == slot_of_.size() && num_unneeded == unneeded_.size() &&
         num_used + free_.size() == entries_.size();
}

}  // namespace deltafin
