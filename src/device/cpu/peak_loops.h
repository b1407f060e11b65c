// The inner loops of machine_limits.h, compiled with the flags of their instruction sets.
#pragma once

#include <cstdint>

#include "device/cpu/cpu_device.h"

namespace deltafin::peak_loops {

uint64_t SumWords(const uint64_t* words, int64_t count);
// Runs `steps` rounds of independent multiply-adds. Returns the number of operations.
int64_t FmaLoop(CpuIsa isa, int64_t steps, float* result);

}  // namespace deltafin::peak_loops
