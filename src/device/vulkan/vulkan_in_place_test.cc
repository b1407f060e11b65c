// Experts in slots of the host's: the bits of the CPU wherever they lie in a slot, nothing of them
// copied, and what happens where the GPU cannot have the slots.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/format.h"
#include "base/page_memory.h"
#include "device/device_test_util.h"
#include "device/vulkan/vulkan_test_util.h"

namespace deltafin {
namespace {

constexpr uint64_t kMuch = uint64_t{1} << 28;

// Of a store whose slots alone have the weights.
class NoOrigin final : public WeightOrigin {
 public:
  Matrix ReadAgain(uint64_t, std::vector<std::byte>&) override {
    throw Error(ErrorCode::kIo, "the slot has other weights now");
  }
};

// Slots as the store has them.
class VulkanInPlaceTest : public GpuTest {
 protected:
  static constexpr uint64_t kSlotBytes = uint64_t{96} << 10;
  static constexpr int64_t kSlots = 3;

  // A new device that may use the slots.
  VulkanDevice& Restart(uint64_t expert_bytes, bool flushes = false, bool has_operators = true) {
    VulkanDevice& device = gpu_->Restart(kMuch, expert_bytes, flushes, has_operators);
    device.SetSlots(memory_.data(), kSlotBytes, kSlots);
    return device;
  }
  void SetUp() override {
    if (!gpu_->gpu().info().shares_ram) GTEST_SKIP() << "this GPU has memory of its own";
  }
  void TearDown() override {
    gpu_->Restart(0, 0);  // the slots go away with this
    GpuTest::TearDown();
  }

  // Copies an expert to a slot, `skip` bytes from its beginning.
  ExpertWeights Put(size_t slot, size_t skip, int64_t width, int64_t latent, Range range) {
    ExpertWeights expert;
    std::byte* to = memory_.data() + slot * kSlotBytes + skip;
    for (const auto& [w, rows, cols] : {std::tuple{&expert.w1, width, latent},
                                        {&expert.w3, width, latent},
                                        {&expert.w2, latent, width}}) {
      const OwnedMatrix owned = random_.MatrixOf(WeightFormat::kMxfp4, rows, cols, range);
      *w = owned.view;
      for (const auto& [from, bytes] :
           {std::pair{&w->data, rows * cols / 2}, {&w->scales, rows * (cols / 32)}}) {
        std::memcpy(to, *from, static_cast<size_t>(bytes));
        *from = to;
        to += bytes;
      }
    }
    EXPECT_LE(to, memory_.data() + (slot + 1) * kSlotBytes);
    return expert;
  }

  // Each expert for n positions, and the outputs weighted and summed.
  static std::vector<float> Run(Device& device, std::span<const ExpertWeights> experts,
                                const std::vector<float>& x, int64_t n, int64_t latent) {
    const auto num_experts = static_cast<int64_t>(experts.size());
    const DeviceFloats z(device, x);
    const DeviceFloats y(device, n * num_experts * latent);
    const DeviceFloats combined(device, n * latent);
    std::vector<int32_t> in_rows(static_cast<size_t>(n));
    std::iota(in_rows.begin(), in_rows.end(), 0);
    std::vector<std::vector<int32_t>> out_rows(experts.size(), in_rows);
    std::vector<ExpertTask> tasks;
    for (size_t e = 0; e < experts.size(); ++e) {
      for (int32_t& row : out_rows[e])
        row = row * static_cast<int32_t>(num_experts) + static_cast<int32_t>(e);
      tasks.push_back({experts[e], in_rows.data(), out_rows[e].data(), n});
    }
    device.ExpertMlp(tasks, z.data(), y.data(), latent, {});
    device.Synchronize();
    const std::vector<float> weights(static_cast<size_t>(n * num_experts), 0.75f);
    device.CombineExperts(combined.data(), y.data(), weights.data(), n, num_experts, latent);
    std::vector<float> all = y.Read();
    const std::vector<float> sums = combined.Read();
    all.insert(all.end(), sums.begin(), sums.end());
    return all;
  }

  ThreadPool one_thread_{1};
  std::unique_ptr<Device> plain_ = MakeCpuDevice(one_thread_, CpuIsa::kPlain);
  Random random_{20250131};
  PageBuffer memory_{kSlotBytes * static_cast<uint64_t>(kSlots)};
};

TEST_F(VulkanInPlaceTest, ExpertsHaveTheBitsOfTheCpuWhereverTheyLie) {
  for (const bool flushes : {false, true}) {
    for (const bool has_operators : {true, false}) {
      VulkanDevice& device = Restart(0, flushes, has_operators);
      EXPECT_EQ(gpu_->notice(), "");
      for (const Range range : {Range::kOrdinary, Range::kWild}) {
        for (const auto& [width, latent] : {std::pair{32, 32}, {96, 160}, {160, 288}}) {
          std::vector<ExpertWeights> experts;
          for (size_t slot = 0; slot < 3; ++slot) {
            experts.push_back(Put(slot, 1000 + 7 * slot, width, latent, range));
          }
          for (const int64_t n : {1, 3, 6}) {
            const std::vector<float> x = random_.Values(n * latent, range);
            const uint64_t before = device.in_place_bytes();
            ExpectSameBits(Run(*plain_, experts, x, n, latent), Run(device, experts, x, n, latent),
                           deltafin::format("[{}, {}] x {}, flushes {}, operators {}", width,
                                            latent, n, flushes, has_operators));
            if (!has_operators) continue;  // what the guard does not let through is the CPU's
            EXPECT_EQ(device.in_place_bytes() - before,
                      static_cast<uint64_t>(3 * 3 * width * latent / 32 * 17));
          }
        }
      }
      EXPECT_EQ(device.held_bytes(), 0u);
      EXPECT_FALSE(device.is_lost()) << gpu_->notice();
    }
  }
}

// What lies outside of the slots is the host's, what the GPU holds is not read twice.
TEST_F(VulkanInPlaceTest, OnlyWhatLiesInASlotIsReadThere) {
  constexpr int64_t kWidth = 64;
  constexpr int64_t kLatent = 96;
  VulkanDevice& device = Restart(kMuch);
  std::vector<ExpertWeights> experts;
  for (size_t slot = 0; slot < 3; ++slot) {
    experts.push_back(Put(slot, slot, kWidth, kLatent, Range::kOrdinary));
  }
  const std::vector<float> x = random_.Values(2 * kLatent);
  const std::vector<float> want = Run(*plain_, experts, x, 2, kLatent);
  constexpr uint64_t kExpertBytes = 3 * kWidth * kLatent / 32 * 17;
  const OwnedMatrix elsewhere =
      random_.MatrixOf(WeightFormat::kMxfp4, kWidth, kLatent, Range::kOrdinary);
  ExpertWeights half = experts[2];
  half.w3 = elsewhere.view;
  uint64_t id = kExpertIdBit;
  for (Matrix* w : {&experts[0].w1, &experts[0].w3, &experts[0].w2}) w->id = ++id;
  ExpectSameBits(want, Run(device, experts, x, 2, kLatent), "one is held");
  EXPECT_EQ(device.in_place_bytes(), 2 * kExpertBytes);
  EXPECT_GT(device.held_bytes(), 0u);

  experts[2] = half;
  ExpectSameBits(Run(*plain_, experts, x, 2, kLatent), Run(device, experts, x, 2, kLatent),
                 "one is held, one the host's");
  EXPECT_EQ(device.in_place_bytes(), 3 * kExpertBytes);
}

// A slot has other weights as soon as Synchronize returned.
TEST_F(VulkanInPlaceTest, ASlotMayChangeAfterSynchronize) {
  constexpr int64_t kWidth = 64;
  constexpr int64_t kLatent = 96;
  bool finished = false;
  for (int64_t submits = -1; !finished; ++submits) {
    ASSERT_LT(submits, 20);
    VulkanDevice& device = Restart(0);
    NoOrigin origin;
    device.SetExpertOrigin(&origin);
    const std::vector<float> x = random_.Values(kLatent);
    const DeviceFloats z(device, x);
    const DeviceFloats y(device, 2 * kLatent);
    const DeviceFloats plain_z(*plain_, x);
    const DeviceFloats plain_y(*plain_, 2 * kLatent);
    LoseAfter(submits);
    const int32_t in = 0;
    for (const int32_t out : {0, 1}) {
      const ExpertWeights expert = Put(1, 64, kWidth, kLatent, Range::kOrdinary);
      const ExpertTask task{expert, &in, &out, 1};
      plain_->ExpertMlp({&task, 1}, plain_z.data(), plain_y.data(), kLatent, {});
      device.ExpertMlp({&task, 1}, z.data(), y.data(), kLatent, {});
      device.Synchronize();
    }
    ExpectSameBits(plain_y.Read(), y.Read(), deltafin::format("lost after {}", submits));
    finished = submits >= 0 && !device.is_lost();
    gpu_->gpu().SetFaults({});
  }
}

TEST_F(VulkanInPlaceTest, AGpuThatCannotHaveTheSlotsLeavesThemToTheCpu) {
  constexpr int64_t kWidth = 32;
  constexpr int64_t kLatent = 64;
  GpuFaults faults;
  faults.most_bytes = 1;
  gpu_->gpu().SetFaults(faults);
  VulkanDevice& device = Restart(0);
  gpu_->gpu().SetFaults({});
  EXPECT_NE(gpu_->notice().find("the CPU computes the experts that the GPU does not hold"),
            std::string::npos)
      << gpu_->notice();
  const ExpertWeights expert = Put(0, 0, kWidth, kLatent, Range::kOrdinary);
  const std::vector<float> x = random_.Values(kLatent);
  ExpectSameBits(Run(*plain_, {&expert, 1}, x, 1, kLatent),
                 Run(device, {&expert, 1}, x, 1, kLatent), "refused");
  EXPECT_EQ(device.in_place_bytes(), 0u);
  EXPECT_FALSE(device.is_lost());

  VulkanDevice& other = gpu_->Restart(kMuch, 0);
  other.SetSlots(memory_.data() + 64, kSlotBytes, kSlots - 1);
  EXPECT_NE(gpu_->notice().find("at multiples of"), std::string::npos) << gpu_->notice();
  ExpectSameBits(Run(*plain_, {&expert, 1}, x, 1, kLatent), Run(other, {&expert, 1}, x, 1, kLatent),
                 "in no page of its own");
  EXPECT_EQ(other.in_place_bytes(), 0u);
}

}  // namespace
}  // namespace deltafin
