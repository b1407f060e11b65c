// Divides the memory budget: working set first, then the spine, then expert slots.
#pragma once

#include <cstdint>
#include <string>

#include "io/memory_limits.h"
#include "store/checkpoint.h"

namespace deltafin {

struct PlanRequest {
  uint64_t ram_bytes = 0;        // --ram; 0: the limit of the machine less a reserve
  uint64_t state_bytes = 0;      // of the sequences, for the context that is planned for
  uint64_t workspace_bytes = 0;  // scratch of a pass
};

struct MemoryPlan {
  uint64_t limit_bytes = 0;  // what binds
  std::string limited_by;
  uint64_t reserve_bytes = 0;  // left to the system
  uint64_t budget_bytes = 0;   // limit - reserve, or --ram
  uint64_t state_bytes = 0;
  uint64_t workspace_bytes = 0;
  uint64_t spine_bytes = 0;  // resident
  int64_t expert_slots = 0;
  uint64_t expert_bytes = 0;  // of all slots
};

// Bytes of the spine of text as the checkpoint stores it, head included, embedding excluded (its
// rows are read one by one).
uint64_t SpineBytes(const Checkpoint& checkpoint);

// Throws Error(kOutOfMemory) naming the smallest budget that would do.
MemoryPlan PlanMemory(const Checkpoint& checkpoint, const MemoryLimits& limits,
                      const PlanRequest& request);

}  // namespace deltafin
