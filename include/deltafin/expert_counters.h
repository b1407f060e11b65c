// What the routed experts cost so far: hits, reads, waits.
#pragma once

#include <cstdint>
#include <vector>

namespace deltafin {

struct ExpertStoreCounters {
  uint64_t requested = 0;     // experts asked for
  uint64_t hits = 0;          // of those, already in a slot
  uint64_t ahead_hits = 0;    // of the hits, read on a hint and not used before
  uint64_t ahead_late = 0;    // asked for while a read on a hint was still under way: no hit
  uint64_t bytes_demand = 0;  // read because they were asked for
  uint64_t bytes_ahead = 0;   // read on a hint
  uint64_t bytes_wasted = 0;  // of those, given up without use
  uint64_t bytes_warm = 0;    // read at the start because they were hot in earlier runs
  double wait_seconds = 0;    // time for which the computation waited for experts

  uint64_t bytes_read() const { return bytes_demand + bytes_ahead + bytes_warm; }
};

struct LayerExpertCounters {
  uint64_t requested = 0;
  uint64_t hits = 0;
  uint64_t ahead_hits = 0;
  uint64_t ahead_late = 0;
  uint64_t foretold_of = 0;  // experts asked for by requests that a hint came before
  uint64_t foretold = 0;     // of those, in the hint: foretold / foretold_of is its recall
  double wait_seconds = 0;
  bool hints_on = false;  // false: hints did not pay of late and are ignored for a while
};

}  // namespace deltafin
