// Which GPU an engine computes with, and how much of its memory it takes. Internal to engine/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "deltafin/engine.h"
#include "device/vulkan/gpu.h"
#include "device/vulkan/self_test.h"

namespace deltafin {

struct GpuChoice {
  std::unique_ptr<Gpu> gpu;  // null: the CPU alone
  GpuVerdict verdict;
  uint64_t weight_bytes = 0;   // of its memory, for weights
  uint64_t working_bytes = 0;  // and for states and working memory
};

// Opens and tests the GPU that the options ask for; nothing for kCpu. kAuto throws no Error:
// without a GPU that is worth it there is none. kGpu throws Error(kUnsupported). `ram_bytes`: what
// may be used of the machine's memory, for GPUs that have no other. `working_bytes`: what a GPU
// that computes more than products needs besides weights.
GpuChoice ChooseGpu(const EngineOptions& options, uint64_t ram_bytes, uint64_t working_bytes);

// Of weight_bytes, the part that whole pieces of weights can fill however they come.
uint64_t PlannedSpineBytes(uint64_t weight_bytes);
// What must be set aside for pieces of so many bytes in all.
uint64_t SpineRoom(uint64_t weight_bytes, uint64_t device_spine_bytes);

// Host memory that a GPU device takes for what passes between the two.
inline constexpr uint64_t kGpuHostBytes = uint64_t{96} << 20;

}  // namespace deltafin
