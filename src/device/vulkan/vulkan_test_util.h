// A GPU for tests: the software driver that the tests' packages bring (docs/platforms.md), or what
// else DELTAFIN_TEST_GPU numbers.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "device/cpu/cpu_device.h"
#include "device/vulkan/gpu.h"
#include "device/vulkan/self_test.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {

inline size_t TestGpuNumber(const VulkanInstance& instance) {
  if (const char* number = std::getenv("DELTAFIN_TEST_GPU")) {
    return static_cast<size_t>(std::strtoul(number, nullptr, 10));
  }
  for (size_t i = 0; i < instance.gpus().size(); ++i) {
    if (instance.gpus()[i].info.kind == GpuKind::kSoftware) return i;
  }
  throw Error(ErrorCode::kNotFound, "no software driver for Vulkan: install mesa-vulkan-drivers");
}

// A GPU that passed the self-test, and a device that computes on it.
class GpuFixture {
 public:
  explicit GpuFixture(uint64_t spine_bytes = uint64_t{1} << 30,
                      uint64_t expert_bytes = uint64_t{1} << 30)
      : pool_(2) {
    const auto instance = VulkanInstance::Create();
    gpu_ = std::make_unique<Gpu>(instance, TestGpuNumber(*instance));
    verdict_ = TestGpu(*gpu_, MakeCpuDevice(pool_), pool_);
    EXPECT_EQ(verdict_.problem, "");
    Restart(spine_bytes, expert_bytes);
  }

  // A new device, which holds nothing.
  VulkanDevice& Restart(uint64_t spine_bytes, uint64_t expert_bytes, bool flush = false,
                        bool has_operators = true, uint64_t journal_bytes = uint64_t{1} << 20,
                        uint64_t span_bytes = uint64_t{1} << 27) {
    device_ = nullptr;
    notice_.clear();
    device_ = std::make_unique<VulkanDevice>(
        *gpu_, MakeCpuDevice(pool_), pool_,
        VulkanDeviceOptions{spine_bytes, expert_bytes,
                            [this](const std::string& notice) { notice_ = notice; },
                            verdict_.flushes_subnormals || flush,
                            verdict_.has_operators && has_operators, journal_bytes, span_bytes});
    return *device_;
  }

  Gpu& gpu() { return *gpu_; }
  const GpuVerdict& verdict() const { return verdict_; }
  VulkanDevice& device() { return *device_; }
  const std::string& notice() const { return notice_; }
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_;
  std::unique_ptr<Gpu> gpu_;
  GpuVerdict verdict_;
  std::unique_ptr<VulkanDevice> device_;
  std::string notice_;
};

// Tests of a suite share one: to open it takes longer than most of them.
class GpuTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { gpu_ = new GpuFixture(); }
  static void TearDownTestSuite() {
    delete gpu_;
    gpu_ = nullptr;
  }
  void TearDown() override { gpu_->gpu().SetFaults({}); }

  // The GPU is lost with the submission after so many more.
  static void LoseAfter(int64_t submits) {
    GpuFaults faults;
    faults.submits_until_lost = submits;
    gpu_->gpu().SetFaults(faults);
  }

  static inline GpuFixture* gpu_ = nullptr;
};

}  // namespace deltafin
