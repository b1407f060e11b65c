// What one forward pass carries from layer to layer. Internal to model/.
#pragma once

#include <span>
#include <vector>

#include "model/model.h"

namespace deltafin {

struct Model::Pass {
  std::vector<Run> runs;           // those that have not left
  std::vector<size_t> index;       // of each run: what the caller knows it by
  std::vector<int64_t> first_row;  // of each run, in the order of the pass
  std::vector<size_t> failed;      // runs that must leave, ascending
  int64_t n = 0;                   // positions
  const ForwardHooks* hooks = nullptr;

  float* prefix = nullptr;     // [n, hidden]: the prefix sum P
  float* snapshots = nullptr;  // [num_snapshots, n, hidden]
  int64_t num_snapshots = 0;   // of them taken so far

  // The routing of the current layer: which rows each expert reads and writes, and the experts that
  // have any, ascending.
  struct Picks {
    std::vector<int32_t> in_rows;
    std::vector<int32_t> out_rows;
  };
  std::vector<Picks> picks_of;  // [num_experts]
  std::vector<int32_t> distinct;
};

}  // namespace deltafin
