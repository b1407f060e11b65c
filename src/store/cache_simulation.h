// The slots without weights: what a policy would have kept.
#pragma once

#include <cstdint>
#include <span>

#include "store/slot_table.h"

namespace deltafin {

// Counts the hits of requests that are each held in RAM as a whole if the slots suffice, and
// otherwise go through them in order. Exactly what the expert store does. Not thread-safe.
class CacheSimulation {
 public:
  // `policy` must outlive it and serve no other.
  CacheSimulation(const ExpertShape& shape, int64_t num_slots, EvictionPolicy& policy)
      : shape_(shape), policy_(policy), table_(num_slots, policy) {}

  // One request for `experts` (distinct) of `layer`. Returns its hits.
  uint64_t Pass(int64_t layer, std::span<const int32_t> experts);

  uint64_t num_requested() const { return num_requested_; }
  uint64_t num_hits() const { return num_hits_; }

 private:
  const ExpertShape shape_;
  EvictionPolicy& policy_;
  SlotTable table_;
  uint64_t num_requested_ = 0;
  uint64_t num_hits_ = 0;
};

}  // namespace deltafin
