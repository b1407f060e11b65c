#pragma once

#include <cstdint>

namespace deltafin {

// For messages.
inline double Gigabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e9; }

}  // namespace deltafin
