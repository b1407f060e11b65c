#include "device/vulkan/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
constexpr VkMemoryPropertyFlags kMapped =
    VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
constexpr VkMemoryPropertyFlags kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
constexpr uint32_t kAny = ~0u;

VkPhysicalDeviceMemoryProperties Types(std::initializer_list<VkMemoryPropertyFlags> flags) {
  VkPhysicalDeviceMemoryProperties memory{};
  for (const VkMemoryPropertyFlags each : flags) {
    memory.memoryTypes[memory.memoryTypeCount++].propertyFlags = each;
  }
  return memory;
}

// The part of a discrete GPU's memory that the host can write may be 256 MiB, of which others have
// some: what is on its way there must not depend on it.
TEST(MemoryTypes, WhatIsOnItsWayToTheGpuMayWaitInTheHostsMemory) {
  const auto memory = Types(
      {kLocal, kMapped, kMapped | kCached, kLocal | kMapped, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT});
  EXPECT_THAT(MemoryTypesFor(memory, kAny, MemoryUse::kToGpu, false), ElementsAre(3, 1, 2));
  EXPECT_THAT(MemoryTypesFor(memory, kAny, MemoryUse::kFromGpu, false), ElementsAre(2, 1, 3));
  EXPECT_THAT(MemoryTypesFor(memory, 0b10010, MemoryUse::kToGpu, false), ElementsAre(1));
  EXPECT_THAT(MemoryTypesFor(memory, 0b10001, MemoryUse::kToGpu, false), IsEmpty());
}

TEST(MemoryTypes, WeightsLieInTheGpusOwnOrNowhere) {
  const auto memory = Types({kMapped, kLocal, kLocal | kMapped});
  EXPECT_THAT(MemoryTypesFor(memory, kAny, MemoryUse::kWeights, false), ElementsAre(1));
  EXPECT_THAT(MemoryTypesFor(memory, kAny, MemoryUse::kScratch, false), ElementsAre(1));
  EXPECT_THAT(MemoryTypesFor(memory, kAny, MemoryUse::kWeights, true), ElementsAre(2));
  EXPECT_THAT(MemoryTypesFor(Types({kMapped}), kAny, MemoryUse::kWeights, true), ElementsAre(0));
}

}  // namespace
}  // namespace deltafin
