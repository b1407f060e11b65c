// What the host takes from the GPU while that goes on: the bits, what is waited for, and a GPU that
// is lost meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/format.h"
#include "device/device_test_util.h"
#include "device/vulkan/vulkan_device.h"
#include "device/vulkan/vulkan_test_util.h"

namespace deltafin {
namespace {

constexpr uint64_t kMuch = uint64_t{1} << 28;
constexpr int64_t kWidth = 96;
constexpr int64_t kExperts = 8;
constexpr int64_t kTopK = 3;

class VulkanArrivalsTest : public GpuTest {
 protected:
  void SetUp() override {
    for (OwnedMatrix* w : {&router_, &down_, &shared_}) {
      *w = random_.MatrixOf(WeightFormat::kF32, w == &router_ ? kExperts : kWidth, kWidth);
      w->view.id = ++last_id_;
    }
    for (size_t e = 0; e < experts_.size(); ++e) {
      for (size_t i = 0; i < 3; ++i) {
        OwnedMatrix& w = experts_[e][i];
        const int64_t rows = i == 2 ? kWidth : 64;
        w = random_.MatrixOf(WeightFormat::kMxfp4, rows, i == 2 ? 64 : kWidth);
        w.view.id = e % 3 == 0 ? kExpertIdBit | ++last_id_ : 0;  // the others are the host's
      }
    }
  }

  // The experts part of a few layers, of which each changes its input: all that was picked, and the
  // last output. Layers differ in how many of their experts are the GPU's.
  std::vector<float> RunLayers(Device& device, const std::vector<float>& x, int64_t n) const {
    const DeviceFloats h(device, x);
    const DeviceFloats logits(device, n * kExperts);
    const DeviceFloats z(device, n * kWidth);
    const DeviceFloats shared(device, n * kWidth);
    const DeviceFloats y(device, n * kTopK * kWidth);
    const DeviceFloats combined(device, n * kWidth);
    const std::vector<float> bias(kExperts, 0.125f);
    std::vector<float> all;
    for (int layer = 0; layer < 4; ++layer) {
      const RouterParams params{kExperts, kTopK, true, 2.5f};
      device.MatMul(router_.view, h.data(), logits.data(), kExperts, n);
      if (layer != 1) device.StartRouter(logits.data(), bias.data(), n, params);
      device.MatMul(down_.view, h.data(), z.data(), kWidth, n);
      if (layer != 2) device.StartExperts(z.data(), n, kWidth);
      device.MatMul(shared_.view, h.data(), shared.data(), kWidth, n);
      std::vector<int32_t> ids(static_cast<size_t>(n * kTopK));
      std::vector<float> weights(ids.size());
      device.RouterTopK(ids.data(), weights.data(), logits.data(), bias.data(), n, params);
      all.insert(all.end(), ids.begin(), ids.end());
      all.insert(all.end(), weights.begin(), weights.end());
      RunExperts(device, ids, z.data(), y.data());
      device.CombineExperts(combined.data(), y.data(), weights.data(), n, kTopK, kWidth);
      device.Add(combined.data(), shared.data(), n * kWidth);
      device.Copy(h.data(), combined.data(), static_cast<size_t>(n * kWidth) * sizeof(float));
    }
    for (const DeviceFloats* floats : {&h, &z, &y}) {
      const std::vector<float> values = floats->Read();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  // A product that takes long: many positions with a large matrix.
  static constexpr int64_t kLong = 2048;
  static int64_t ManyPositions() {
    return gpu_->gpu().info().kind == GpuKind::kSoftware ? 8 : 2048;
  }
  OwnedMatrix Rest() {
    OwnedMatrix rest = random_.MatrixOf(WeightFormat::kF32, kLong, kLong);
    rest.view.id = ++last_id_;
    return rest;
  }

  // In two submissions, as experts come.
  void RunExperts(Device& device, const std::vector<int32_t>& ids, const float* z, float* y) const {
    std::array<std::vector<int32_t>, kExperts> in_rows;
    std::array<std::vector<int32_t>, kExperts> out_rows;
    for (size_t pick = 0; pick < ids.size(); ++pick) {
      const auto expert = static_cast<size_t>(ids[pick]);
      in_rows[expert].push_back(static_cast<int32_t>(pick) / static_cast<int32_t>(kTopK));
      out_rows[expert].push_back(static_cast<int32_t>(pick));
    }
    for (const size_t first : {0, 4}) {
      std::vector<ExpertTask> tasks;
      for (size_t e = first; e < first + 4; ++e) {
        if (in_rows[e].empty()) continue;
        const auto& [w1, w3, w2] = experts_[e];
        tasks.push_back({{w1.view, w3.view, w2.view},
                         in_rows[e].data(),
                         out_rows[e].data(),
                         std::ssize(in_rows[e])});
      }
      if (tasks.empty()) continue;
      device.ExpertMlp(tasks, z, y, kWidth, {});
      device.Synchronize();
    }
  }

  ThreadPool one_thread_{1};
  std::unique_ptr<Device> plain_ = MakeCpuDevice(one_thread_, CpuIsa::kPlain);
  Random random_{20261201};
  uint64_t last_id_ = 0;
  OwnedMatrix router_;
  OwnedMatrix down_;
  OwnedMatrix shared_;
  std::array<std::array<OwnedMatrix, 3>, kExperts> experts_;
};

TEST_F(VulkanArrivalsTest, LayersHaveTheBitsOfTheCpu) {
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  for (const int64_t n : {1, 5}) {
    const std::vector<float> x = random_.Values(n * kWidth);
    const std::vector<float> want = RunLayers(*plain_, x, n);
    for (int again = 0; again < 2; ++again) {
      ExpectSameBits(want, RunLayers(device, x, n), deltafin::format("{} positions", n));
    }
  }
  EXPECT_FALSE(device.is_lost()) << gpu_->notice();
}

// Of more positions than are sent beside host memory.
TEST_F(VulkanArrivalsTest, ManyPositionsHaveTheBitsOfTheCpu) {
  constexpr int64_t kMany = 1400;
  const std::vector<float> x = random_.Values(kMany * kWidth);
  const auto run = [&](Device& device) {
    const DeviceFloats h(device, x);
    const DeviceFloats z(device, kMany * kWidth);
    const DeviceFloats y(device, kWidth);
    device.MatMul(down_.view, h.data(), z.data(), kWidth, kMany);
    const int32_t in_row = kMany - 1;
    const int32_t out_row = 0;
    const auto& [w1, w3, w2] = experts_[1];
    const ExpertTask task{{w1.view, w3.view, w2.view}, &in_row, &out_row, 1};
    device.ExpertMlp({&task, 1}, z.data(), y.data(), kWidth, {});
    return y.Read();
  };
  ExpectSameBits(run(*plain_), run(gpu_->Restart(kMuch, kMuch)), "many positions");
}

TEST_F(VulkanArrivalsTest, ALostGpuCostsNoBit) {
  const int64_t n = 2;
  const std::vector<float> x = random_.Values(n * kWidth);
  const std::vector<float> want = RunLayers(*plain_, x, n);
  bool finished = false;
  for (int64_t submits = 0; !finished; ++submits) {
    ASSERT_LT(submits, 100);
    VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
    ExpectSameBits(want, RunLayers(device, x, n), "before");
    LoseAfter(submits);
    ExpectSameBits(want, RunLayers(device, x, n),
                   deltafin::format("lost after {} submissions", submits));
    finished = !device.is_lost();
    EXPECT_TRUE(!finished || submits >= 8);
    gpu_->gpu().SetFaults({});
  }
}

// The GPU is still at work on what came after the experts' input when the host has computed them. A
// machine that is busy elsewhere may not see it each time; a host that waits for all never does.
TEST_F(VulkanArrivalsTest, TheHostsExpertsDoNotWaitForTheRest) {
  VulkanDevice& device = gpu_->Restart(kMuch, 0);
  const int64_t many = ManyPositions();
  const OwnedMatrix rest = Rest();
  const DeviceFloats h(device, random_.Values(kWidth));
  const DeviceFloats x(device, random_.Values(many * kLong));
  const DeviceFloats z(device, kWidth);
  const DeviceFloats y(device, kTopK * kWidth);
  const DeviceFloats other(device, many * kLong);
  bool goes_on = false;
  for (int attempt = 0; attempt < 6 && !goes_on; ++attempt) {
    const bool is_first = attempt == 0;
    device.MatMul(down_.view, h.data(), z.data(), kWidth, 1);
    device.StartExperts(z.data(), 1, kWidth);
    device.MatMul(rest.view, x.data(), other.data(), kLong, is_first ? 1 : many);
    const int64_t waits = device.num_waits();
    RunExperts(device, {0, 1, 2}, z.data(), y.data());
    EXPECT_EQ(device.num_waits(), waits + 1);
    if (is_first) continue;  // it was not known yet that some are the host's
    goes_on = gpu_->gpu().Progress() < gpu_->gpu().use().submissions;
  }
  EXPECT_TRUE(goes_on);
}

// Picks that were asked for early are waited for alone.
TEST_F(VulkanArrivalsTest, ThePicksDoNotWaitForTheRest) {
  VulkanDevice& device = gpu_->Restart(kMuch, 0);
  const int64_t many = ManyPositions();
  const OwnedMatrix rest = Rest();
  const DeviceFloats h(device, random_.Values(kWidth));
  const DeviceFloats x(device, random_.Values(many * kLong));
  const DeviceFloats logits(device, kExperts);
  const DeviceFloats other(device, many * kLong);
  device.MatMul(rest.view, x.data(), other.data(), kLong, 1);  // and the weights are there
  other.Read();
  const std::vector<float> bias(kExperts, 0.125f);
  const RouterParams params{kExperts, kTopK, true, 2.5f};
  EXPECT_FALSE(device.StartRouter(logits.data(), bias.data(), 1, params));  // they are the host's
  bool goes_on = false;
  for (int attempt = 0; attempt < 5 && !goes_on; ++attempt) {
    device.MatMul(router_.view, h.data(), logits.data(), kExperts, 1);
    EXPECT_TRUE(device.StartRouter(logits.data(), bias.data(), 1, params));
    device.MatMul(rest.view, x.data(), other.data(), kLong, many);
    const int64_t waits = device.num_waits();
    std::vector<int32_t> ids(kTopK);
    std::vector<float> weights(kTopK);
    device.RouterTopK(ids.data(), weights.data(), logits.data(), bias.data(), 1, params);
    EXPECT_EQ(device.num_waits(), waits + 1);
    goes_on = gpu_->gpu().Progress() < gpu_->gpu().use().submissions;
  }
  EXPECT_TRUE(goes_on);
}

}  // namespace
}  // namespace deltafin
