#include "store/cache_simulation.h"

#include <deque>
#include <vector>

#include "base/check.h"

namespace deltafin {

uint64_t CacheSimulation::Pass(int64_t layer, std::span<const int32_t> experts) {
  policy_.OnPass(layer, experts);
  std::deque<SlotTable::Slot> pinned;
  std::vector<ExpertKey> missing;
  for (int32_t expert : experts) {
    const ExpertKey key = shape_.Key(layer, expert);
    if (const auto slot = table_.Find(key)) {
      table_.Pin(*slot);
      pinned.push_back(*slot);
    } else {
      missing.push_back(key);
    }
  }
  const uint64_t hits = pinned.size();
  num_requested_ += experts.size();
  num_hits_ += hits;
  for (ExpertKey key : missing) {
    auto slot = table_.Claim(key);
    if (!slot) {  // the first of the pass has been computed by now
      DF_CHECK(!pinned.empty());
      table_.Unpin(pinned.front());
      pinned.pop_front();
      slot = table_.Claim(key);
      DF_CHECK(slot.has_value());
    }
    pinned.push_back(*slot);
  }
  for (SlotTable::Slot slot : pinned) table_.Unpin(slot);
  return hits;
}

}  // namespace deltafin
