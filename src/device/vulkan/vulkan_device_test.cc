// The GPU backend against the CPU, bit by bit: products of every format at odd sizes, experts,
// placement, and what happens when the GPU fails.
#include "device/vulkan/vulkan_device.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/format.h"
#include "device/device_test_util.h"
#include "device/vulkan/vulkan_test_util.h"

namespace deltafin {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8,
                                     WeightFormat::kMxfp4};

TEST(VulkanDeviceTest, SelfTestNamesTheArithmetic) {
  GpuFixture gpu;
  EXPECT_NE(gpu.verdict().arithmetic, "");
  RecordProperty("gpu", gpu.gpu().info().name);
  RecordProperty("arithmetic", gpu.verdict().arithmetic);
  RecordProperty("exact", gpu.verdict().exact ? "yes" : "no");
  std::printf("%s: %s, exact %d\n", gpu.gpu().info().name.c_str(), gpu.verdict().arithmetic.c_str(),
              gpu.verdict().exact);
}

}  // namespace
}  // namespace deltafin
