// Which GPU an engine computes with, and how much of its memory it takes. Internal to engine/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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

// By their worth, the best first; those that cannot be used are left out. `any`: also those that
// share the machine's memory.
std::vector<size_t> GpusByWorth(std::span<const GpuInfo> gpus, bool any);

// Opens and tests the GPU that the options ask for: the best one that passes; nothing for kCpu.
// kAuto throws no Error: without a GPU that is worth it there is none, and where one with memory of
// its own cannot be used on_notice hears why. kGpu throws Error(kUnsupported).
GpuChoice ChooseGpu(const EngineOptions& options);

// How much of the GPU's memory is taken, if there is one. `ram_bytes`: what may be used of the
// machine's memory, for GPUs that have no other. `working_bytes`: what a GPU that computes more
// than products needs besides weights.
void DivideGpu(const EngineOptions& options, uint64_t ram_bytes, uint64_t working_bytes,
               GpuChoice& choice);

// Of weight_bytes, the part that whole pieces of weights can fill however they come.
uint64_t PlannedSpineBytes(uint64_t weight_bytes);
// What must be set aside for pieces of so many bytes in all.
uint64_t SpineRoom(uint64_t weight_bytes, uint64_t device_spine_bytes);

// Host memory that a GPU device takes for what passes between the two.
inline constexpr uint64_t kGpuHostBytes = uint64_t{96} << 20;

}  // namespace deltafin
