// The routed experts: RAM slots over the spans on disk.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/matrix.h"
#include "store/checkpoint.h"

namespace deltafin {

struct ExpertStoreCounters {
  uint64_t requested = 0;  // experts asked for
  uint64_t hits = 0;       // of those, already in a slot
  uint64_t bytes_read = 0;
};

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

// One thread requests; at most one batch at a time.
class ExpertStore {
 public:
  virtual ~ExpertStore() = default;
  // Starts reading all of `ids` (distinct, of one MoE layer) at once and returns without waiting.
  virtual std::unique_ptr<ExpertBatch> Request(int64_t layer, std::span<const int32_t> ids) = 0;
  virtual ExpertStoreCounters counters() const = 0;
};

// `num_slots` spans of RAM with least-recently-used eviction, at least 1; a slot takes its memory
// when it is first used. `checkpoint` must outlive the store.
std::unique_ptr<ExpertStore> MakeExpertStore(const Checkpoint& checkpoint, int64_t num_slots);

}  // namespace deltafin
