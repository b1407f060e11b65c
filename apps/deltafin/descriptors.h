// How many files and connections the process may have open.
#pragma once

#include <cstdint>

namespace deltafin {

// Raises the limit as far as the system lets it: a model has two descriptors for each shard, a
// server one for each connection. Returns it; the largest value where there is none.
uint64_t RaiseDescriptorLimit();

}  // namespace deltafin
