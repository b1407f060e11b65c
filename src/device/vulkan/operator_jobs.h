// What the host's side of the operators on a GPU shares. Internal to device/vulkan/.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "device/vulkan/gpu.h"

namespace deltafin {

inline constexpr int kLeastNormal = -126;  // exponent of a float
inline constexpr int64_t kMostGroups = 65'535;
// Workgroups that are enough to fill a GPU, and threads of each.
inline constexpr int64_t kEnoughGroups = 4'096;
inline constexpr int64_t kGroupThreads = 128;

inline uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
inline uint32_t U32(int64_t value) { return static_cast<uint32_t>(value); }

// For `count` values, a thread each while there are threads.
inline uint32_t GroupsOf(int64_t count) {
  return U32(std::clamp<int64_t>((count + kGroupThreads - 1) / kGroupThreads, 1, kEnoughGroups));
}

// Push constants of shaders/elementwise.comp.
struct ElementwiseJob {
  VkDeviceAddress result;
  VkDeviceAddress first;
  VkDeviceAddress second;
  uint32_t count;
  uint32_t beta;
  uint32_t linear_beta;
  uint32_t unused = 0;
};

}  // namespace deltafin
