// The state of one sequence, with the text that it is the state of. Internal to engine/.
#pragma once

#include "engine/state_cache.h"
#include "model/sequence_state.h"

namespace deltafin {

struct Timeline {
  Timeline(const ModelConfig& config, Device& device, CacheFormat format, CacheSpill* spill)
      : state(config, device, format, spill) {}

  void Clear() {
    state.Clear();
    text = {};
    whole = true;
  }

  SequenceState state;
  KeptText text;
  bool whole = true;      // false: a pass was broken off, only Clear or a saved state helps
  uint64_t last_use = 0;  // larger: later
};

}  // namespace deltafin
