// The CPU backend. kPlain is the readable oracle of all faster kernels; every instruction set gives
// the same bits (docs/numerics.md).
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"

namespace deltafin {

enum class CpuIsa : uint8_t { kPlain, kAvx2, kAvx512, kNeon };

std::string_view CpuIsaName(CpuIsa isa);
// Instruction sets that this build has kernels for and this processor runs, kPlain first, best
// last.
std::vector<CpuIsa> AvailableCpuIsas();

// The instruction set that a person named ("plain", "avx2", "avx512", "neon"; "" is the best).
// Throws Error(kInvalidArgument) when it is not available.
CpuIsa ChooseCpuIsa(std::string_view name);

// The pool must outlive the device. `isa` must be one of AvailableCpuIsas().
std::unique_ptr<Device> MakeCpuDevice(ThreadPool& pool, CpuIsa isa);
// With the best available instruction set.
std::unique_ptr<Device> MakeCpuDevice(ThreadPool& pool);

}  // namespace deltafin
