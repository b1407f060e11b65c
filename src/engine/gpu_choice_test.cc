#include "engine/gpu_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

GpuInfo InfoOf(GpuKind kind, uint64_t free_bytes, const std::string& missing = "") {
  GpuInfo info;
  info.kind = kind;
  info.free_bytes = free_bytes;
  info.shares_ram = kind == GpuKind::kIntegrated || kind == GpuKind::kSoftware;
  info.missing = missing;
  return info;
}

TEST(GpusByWorth, TheBestIsFirstAndTheOthersFollow) {
  const std::vector<GpuInfo> gpus = {InfoOf(GpuKind::kSoftware, 90),
                                     InfoOf(GpuKind::kDiscrete, 20),
                                     InfoOf(GpuKind::kIntegrated, 80),
                                     InfoOf(GpuKind::kDiscrete, 40),
                                     InfoOf(GpuKind::kOther, 50),
                                     InfoOf(GpuKind::kVirtual, 70),
                                     InfoOf(GpuKind::kDiscrete, 99, "no timeline semaphores"),
                                     InfoOf(GpuKind::kDiscrete, 40)};
  EXPECT_THAT(GpusByWorth(gpus, true), ElementsAre(3, 7, 1, 5, 2, 4, 0));
  EXPECT_THAT(GpusByWorth(gpus, false), ElementsAre(3, 7, 1, 5, 4));
}

// Machines whose only GPU is in the processor do not test it at every start.
TEST(GpusByWorth, WhatSharesTheMachinesMemoryIsLeftAloneUnasked) {
  const std::vector<GpuInfo> gpus = {InfoOf(GpuKind::kIntegrated, 8),
                                     InfoOf(GpuKind::kSoftware, 8)};
  EXPECT_THAT(GpusByWorth(gpus, false), IsEmpty());
  EXPECT_THAT(GpusByWorth(gpus, true), ElementsAre(0, 1));
}

}  // namespace
}  // namespace deltafin
