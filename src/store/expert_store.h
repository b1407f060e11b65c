// The routed experts: RAM slots over the spans on disk.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/phase_clock.h"
#include "deltafin/expert_counters.h"
#include "deltafin/types.h"
#include "device/matrix.h"
#include "device/weight_keeper.h"
#include "io/read_queue.h"
#include "store/checkpoint.h"

namespace deltafin {

// The experts of one layer that one pass needs. Not thread-safe.
class ExpertBatch {
 public:
  virtual ~ExpertBatch() = default;
  // Waits until at least one expert that was not handed out yet is in RAM and returns all that are,
  // as indexes into the ids of the request, each once; empty when all were handed out. Throws Error
  // when a read failed or the bytes are not an expert (a scale byte of 255); the batch is then lost
  // (every later call throws too), the store is not.
  virtual std::vector<size_t> NextReady() = 0;
  // Valid from NextReady until Release.
  virtual ExpertWeights weights(size_t i) const = 0;
  // The caller is done with expert i: its slot may be reused. Every expert must be released before
  // more than num_slots are needed at a time; ending the batch releases all. A batch may end at any
  // time: it waits for the reads that are under way and drops the others.
  virtual void Release(size_t i) = 0;
};

// One thread requests and hints; at most one batch at a time.
class ExpertStore {
 public:
  virtual ~ExpertStore() = default;
  // Starts reading all of `ids` (distinct, of one MoE layer) at once and returns without waiting.
  virtual std::unique_ptr<ExpertBatch> Request(int64_t layer, std::span<const int32_t> ids) = 0;
  // A guess of what the next request, of `layer`, will ask for (distinct, the likeliest first;
  // none: what it asked for last time): reads ahead while the disk has nothing better to do. Right
  // or wrong, no result depends on it.
  virtual void Hint(int64_t layer, std::span<const int32_t> ids) = 0;
  // False when a hint would be ignored, so that nobody need compute it.
  virtual bool WantsHint(int64_t layer) const = 0;
  virtual ExpertStoreCounters counters() const = 0;
  virtual std::vector<LayerExpertCounters> layer_counters() const = 0;
};

struct ExpertStoreOptions {
  int64_t num_slots = 1;  // spans of RAM; a slot takes its memory when it is first used
  Prefetch prefetch = Prefetch::kOff;
  // Where heat is kept across runs (expert_heat.h); "": it is not, and nothing is read at the
  // start.
  std::string heat_path;
  PhaseClock* clock = nullptr;  // hears of waits
  // An expert that it holds needs no slot, and its weights come without their data. Null: nobody
  // keeps any. Must outlive the store.
  WeightKeeper* keeper = nullptr;
  int64_t keeper_experts = 0;  // that it has room for
};

// Gives up the expert whose next use is expected to be the furthest away (eviction_policy.h).
// `checkpoint` and `queue` must outlive the store, but not a batch that outlives the store.
std::unique_ptr<ExpertStore> MakeExpertStore(const Checkpoint& checkpoint, ReadQueue& queue,
                                             const ExpertStoreOptions& options);

}  // namespace deltafin
