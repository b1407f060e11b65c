// Divides the memory budget: what must be there first, then the spine, then expert slots.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "deltafin/error.h"
#include "io/memory_limits.h"
#include "store/checkpoint.h"
#include "store/spine_source.h"
#include "store/spine_store.h"

namespace deltafin {

struct PlanRequest {
  uint64_t ram_bytes = 0;       // --ram; 0: the limit of the machine less a reserve
  uint64_t program_bytes = 0;   // code, indexes, tokenizer, stacks: whatever the plan cannot choose
  uint64_t gpu_bytes = 0;       // that a GPU takes of RAM
  uint64_t state_bytes = 0;     // of the sequences, for the context that is planned for
  uint64_t snapshot_bytes = 0;  // for copies of states
  int64_t min_positions = 1;    // of a pass: what it must have room for
  int64_t max_positions = 1;    // of a pass
  // Of a GPU's memory, for weights of the spine that then need no RAM after their first use.
  uint64_t device_bytes = 0;
  int64_t pin_layers = -1;  // at most so many layers' worth of the spine stays in RAM; -1: any
  // Scratch of a pass of so many positions; never less for more positions.
  std::function<uint64_t(int64_t positions)> workspace_bytes;
};

struct MemoryPlan {
  uint64_t limit_bytes = 0;      // of the machine for this process
  std::string limit_name;        // what sets it
  std::string limited_by;        // what sets the budget
  uint64_t available_bytes = 0;  // free or reclaimable when the plan was made
  uint64_t reserve_bytes = 0;    // of the limit, not to be used
  uint64_t budget_bytes = 0;     // --ram, or limit - reserve; every sum below stays within

  uint64_t program_bytes = 0;
  uint64_t gpu_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t snapshot_bytes = 0;
  int64_t positions = 1;  // of a pass
  uint64_t workspace_bytes = 0;
  uint64_t tables_bytes = 0;        // norms and other small tensors, int8 scales
  uint64_t buffer_bytes = 0;        // ring of the streamed spine, and the matrix that is used whole
  uint64_t spine_bytes = 0;         // resident pieces, with the room that reading them takes
  bool spine_is_resident = false;   // all of it that no GPU keeps
  uint64_t device_spine_bytes = 0;  // of the GPU's memory, for the pieces that it keeps
  uint64_t streamed_spine_bytes = 0;  // of the spine, read for every pass
  int64_t expert_slots = 0;
  uint64_t expert_bytes = 0;  // of all slots
  SpineStoreOptions spine;

  uint64_t used_bytes() const {
    return program_bytes + gpu_bytes + state_bytes + snapshot_bytes + workspace_bytes +
           tables_bytes + buffer_bytes + spine_bytes + expert_bytes;
  }
};

// The budget is too small.
class BudgetError : public Error {
 public:
  BudgetError(const std::string& message, uint64_t least_bytes)
      : Error(ErrorCode::kOutOfMemory, message), least_bytes_(least_bytes) {}
  uint64_t least_bytes() const { return least_bytes_; }  // that would do

 private:
  uint64_t least_bytes_;
};

// More memory never gives fewer positions, resident pieces or slots. Throws BudgetError naming
// the smallest budget that would do.
MemoryPlan PlanMemory(const Checkpoint& checkpoint, const SpineSource& spine,
                      const MemoryLimits& limits, const PlanRequest& request);

// What a plan may use of the machine: --ram as far as the limits go, or what they and other
// programs leave.
uint64_t BudgetBytes(const MemoryLimits& limits, uint64_t ram_bytes);

// Bytes of the small tensors and scales of the whole spine in RAM.
uint64_t TablesBytes(const Checkpoint& checkpoint, const SpineSource& spine);

}  // namespace deltafin
