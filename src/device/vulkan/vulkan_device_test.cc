// The GPU backend against the CPU, bit by bit: products of every format at odd sizes, operators,
// experts, placement, and what happens when the GPU fails.
#include "device/vulkan/vulkan_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>

#include "base/format.h"
#include "device/device_test_util.h"
#include "device/vulkan/vulkan_test_util.h"

namespace deltafin {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8,
                                     WeightFormat::kMxfp4};
constexpr uint64_t kMuch = uint64_t{1} << 28;

// Hands out what a lost GPU held.
class Shelf final : public WeightOrigin {
 public:
  explicit Shelf(const std::vector<OwnedMatrix>& spine) : spine_(spine) {}
  Matrix ReadAgain(uint64_t id, std::vector<std::byte>& bytes) override {
    buffers_.insert(&bytes);
    for (const OwnedMatrix& w : spine_) {
      if (w.view.id != id) continue;
      Matrix matrix = w.view;
      bytes.assign(matrix.data, matrix.data + matrix.rows * matrix.row_bytes());
      matrix.data = bytes.data();
      return matrix;
    }
    throw Error(ErrorCode::kIo, "no such matrix");
  }
  size_t num_buffers() const { return buffers_.size(); }

 private:
  const std::vector<OwnedMatrix>& spine_;
  std::set<const void*> buffers_;  // that matrices were read into
};

class VulkanDeviceTest : public GpuTest {
 protected:
  OwnedMatrix MatrixOf(WeightFormat format, int64_t rows, int64_t cols,
                       Range range = Range::kOrdinary, uint64_t id_bits = 0) {
    OwnedMatrix w = random_.MatrixOf(format, rows, cols, range);
    w.view.id = id_bits | ++last_id_;
    return w;
  }

  static std::vector<float> Product(Device& device, const Matrix& w, const std::vector<float>& x,
                                    int64_t n) {
    const DeviceFloats in(device, x);
    const int64_t stride = w.rows + 3;
    const DeviceFloats out(device, (n - 1) * stride + w.rows);
    device.MatMul(w, in.data(), out.data(), stride, n);
    return out.Read();
  }

  // A layer's worth of products in the ways that the forward pass uses them: matrices in pieces,
  // of which the host keeps some, results that are the next input, experts. Asks `matrix` for each
  // matrix of the spine that it is about to use.
  static std::vector<float> RunSequence(Device& device, const std::vector<OwnedMatrix>& spine,
                                        const std::vector<std::array<OwnedMatrix, 3>>& experts,
                                        const std::vector<float>& x, int64_t n,
                                        const std::function<Matrix(size_t)>& matrix) {
    constexpr int64_t kWidth = 96;
    const int64_t count = n * kWidth;
    const DeviceFloats in(device, x);
    const DeviceFloats memory(device, 6 * count);
    float* const first = memory.data();
    float* const second = first + count;
    float* const normed = second + count;
    float* const sources = normed + count;  // [2, n, width]
    float* const mixed = sources + 2 * count;
    const DeviceFloats expert_out(device, 2 * count);
    const DeviceFloats combined(device, count);
    std::vector<float> weights(kWidth);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.01f * static_cast<float>(i) - 0.3f;
    int64_t row = 0;
    for (size_t i = 0; i < 3; ++i) {
      Matrix piece = matrix(i);
      if (i == 1) piece.id = 0;  // what the GPU has no room for
      if (i == 1) piece.data = spine[1].view.data;
      device.MatMul(piece, in.data(), first + row, kWidth, n);
      row += piece.rows;
    }
    device.MatMul(matrix(3), first, second, kWidth, n);
    device.Add(second, first, count);
    device.RmsNorm(normed, second, weights.data(), n, kWidth, kWidth, 1e-5f);
    device.RmsNorm(normed, normed, weights.data(), n, kWidth / 2, kWidth, 1e-5f);  // half a row
    device.Copy(sources, second, static_cast<size_t>(count) * sizeof(float));
    device.Copy(sources + count, normed, static_cast<size_t>(count) * sizeof(float));
    device.SigmoidGate(sources + count, second, count);
    device.ResidualMix(mixed, sources, count, 2, normed, weights.data(), n, kWidth, 1e-5f);
    device.GatedRmsNorm(mixed, sources, weights.data(), 2 * n, kWidth / 2, 1e-5f);
    device.SituGlu(second, mixed, normed, count, {});
    std::vector<int32_t> in_rows(static_cast<size_t>(n));
    std::iota(in_rows.begin(), in_rows.end(), 0);
    std::vector<std::vector<int32_t>> out_rows(2, in_rows);
    for (int32_t& out : out_rows[0]) out = 2 * out + 1;
    for (int32_t& out : out_rows[1]) out = 2 * out;
    std::vector<ExpertTask> tasks;
    for (size_t e = 0; e < experts.size(); ++e) {
      const auto& [w1, w3, w2] = experts[e];
      tasks.push_back({{w1.view, w3.view, w2.view}, in_rows.data(), out_rows[e].data(), n});
    }
    device.ExpertMlp(tasks, second, expert_out.data(), kWidth, {});
    device.Synchronize();
    std::vector<float> expert_weights(static_cast<size_t>(2 * n), 0.75f);
    device.CombineExperts(combined.data(), expert_out.data(), expert_weights.data(), n, 2, kWidth);
    std::vector<float> all = combined.Read();
    for (const DeviceFloats* floats : {&memory, &expert_out}) {
      const std::vector<float> values = floats->Read();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  // What RunSequence runs on.
  std::vector<OwnedMatrix> SpineOfSequence() {
    std::vector<OwnedMatrix> spine;
    spine.push_back(MatrixOf(WeightFormat::kBf16, 40, 64));
    spine.push_back(MatrixOf(WeightFormat::kBf16, 30, 64));
    spine.push_back(MatrixOf(WeightFormat::kInt8, 26, 64));
    spine.push_back(MatrixOf(WeightFormat::kF32, 96, 96));
    return spine;
  }
  std::vector<std::array<OwnedMatrix, 3>> ExpertsOfSequence() {
    std::vector<std::array<OwnedMatrix, 3>> experts(2);
    for (auto& [w1, w3, w2] : experts) {
      w1 = MatrixOf(WeightFormat::kMxfp4, 64, 96, Range::kOrdinary, kExpertIdBit);
      w3 = MatrixOf(WeightFormat::kMxfp4, 64, 96, Range::kOrdinary, kExpertIdBit);
      w2 = MatrixOf(WeightFormat::kMxfp4, 96, 64, Range::kOrdinary, kExpertIdBit);
    }
    return experts;
  }

  ThreadPool one_thread_{1};
  std::unique_ptr<Device> plain_ = MakeCpuDevice(one_thread_, CpuIsa::kPlain);
  Random random_{20240607};
  uint64_t last_id_ = 0;
};

// How a GPU may be: with what it does to subnormals, and what its double precision is good for.
class VulkanProductTest : public VulkanDeviceTest,
                          public ::testing::WithParamInterface<std::tuple<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(Gpus, VulkanProductTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()));

TEST_P(VulkanProductTest, ProductsHaveTheBitsOfTheCpu) {
  const auto [flushes, has_operators] = GetParam();
  ASSERT_TRUE(gpu_->verdict().has_operators);
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch, flushes, has_operators);
  for (const WeightFormat format : kFormats) {
    for (const Range range : {Range::kOrdinary, Range::kWild}) {
      for (const auto& [rows, cols] :
           {std::pair{1, 32}, {3, 96}, {33, 544}, {64, 512}, {130, 1056}}) {
        for (const int64_t n : {1, 2, 8, 9, 21}) {
          const OwnedMatrix w = MatrixOf(format, rows, cols, range);
          const std::vector<float> x = random_.Values(n * cols, range);
          const std::string what =
              deltafin::format("format {} [{}, {}] x {}", static_cast<int>(format), rows, cols, n);
          ExpectSameBits(Product(*plain_, w.view, x, n), Product(device, w.view, x, n), what);
          EXPECT_TRUE(device.Holds(w.view.id)) << what;
        }
      }
      if (format == WeightFormat::kMxfp4) continue;
      for (const int64_t cols : {1, 15, 17, 129, 300}) {  // rows that end inside a step
        const OwnedMatrix w = MatrixOf(format, 5, cols, range);
        const std::vector<float> x = random_.Values(2 * cols, range);
        ExpectSameBits(Product(*plain_, w.view, x, 2), Product(device, w.view, x, 2),
                       deltafin::format("{} columns", cols));
      }
    }
  }
  EXPECT_FALSE(device.is_lost()) << gpu_->notice();
}

// What could meet a subnormal is not handed over where double precision is not right, and has its
// bits from the host.
TEST_F(VulkanDeviceTest, AGpuThatFlushesSubnormalsNeverMeetsOne) {
  const int64_t cols = 160;
  for (const WeightFormat format : kFormats) {
    const OwnedMatrix w = MatrixOf(format, 9, cols);
    std::vector<float> x = random_.Values(cols);
    for (float& value : x) value += value < 0 ? -0.5f : 0.5f;
    const auto is_handed_over = [&] {
      VulkanDevice& device = gpu_->Restart(kMuch, kMuch, true, false);
      ExpectSameBits(Product(*plain_, w.view, x, 1), Product(device, w.view, x, 1), "product");
      LoseAfter(1);
      Product(device, w.view, x, 1);
      Product(device, w.view, x, 1);
      gpu_->gpu().SetFaults({});
      return device.is_lost();
    };
    for (const float bad : {0x1p-126f, 0x1p-140f, -0x1p-149f}) {
      x[7] = bad;
      EXPECT_FALSE(is_handed_over()) << static_cast<int>(format) << " " << bad;
    }
    x[7] = 0.0f;
    EXPECT_TRUE(is_handed_over()) << static_cast<int>(format);
  }
}

// Operators on what a product gave: values of all kinds.
TEST_F(VulkanDeviceTest, OperatorsHaveTheBitsOfTheCpu) {
  VulkanDevice& gpu = gpu_->Restart(kMuch, kMuch);
  for (const Range range : {Range::kOrdinary, Range::kWild}) {
    for (const int64_t dim : {5, 48, 260}) {
      const int64_t n = 3;
      const int64_t count = 6 * n * dim;
      OwnedMatrix values = MatrixOf(WeightFormat::kF32, count, 1, range);
      const std::vector<float> w = random_.Values(dim, range);
      const std::vector<float> weights = random_.Values(2 * n, range);
      const auto run = [&](Device& device, int which) {
        const DeviceFloats one(device, std::vector<float>{1.0f});
        const DeviceFloats all(device, 2 * count);
        float* const x = all.data();
        float* const y = x + count;
        device.MatMul(values.view, one.data(), x, count, 1);
        device.MatMul(values.view, one.data(), y, count, 1);
        switch (which) {
          case 0:
            device.RmsNorm(y, x, w.data(), n, dim, dim + 2, 1e-5f);
            break;
          case 1:
            device.GatedRmsNorm(y, x + dim, w.data(), n, dim, 1e-6f);
            break;
          case 2:
            device.ResidualMix(y, x, n * dim + 1, 4, x + 4 * n * dim + 4, w.data(), n, dim, 1e-5f);
            break;
          case 3:
            device.SituGlu(y, x, y, count, {});
            break;
          case 4:
            device.SituGlu(y, x + 1, x, count - 1, {2.5f, 0.0f});
            break;
          case 5:
            device.SigmoidGate(y, x, count);
            break;
          case 6:
            device.Add(y, x + 1, count - 1);
            break;
          case 7:
            device.CombineExperts(y, x, weights.data(), n, 2, dim);
            break;
          case 8:
            device.Copy(y + 3, x + 1, static_cast<size_t>(count - 3) * sizeof(float));
            break;
        }
        return all.Read();
      };
      for (int which = 0; which < 9; ++which) {
        const int64_t waits = gpu.num_waits();
        const std::vector<float> got = run(gpu, which);
        ExpectSameBits(run(*plain_, which), got,
                       deltafin::format("operator {}, dimension {}", which, dim));
        EXPECT_EQ(gpu.num_waits(), waits + 1) << which;  // only to read the results
      }
    }
  }
}

// Rows that do not fit in what a workgroup's threads bring at a time (shaders/staged.glsl).
TEST_F(VulkanDeviceTest, LongRowsHaveTheBitsOfTheCpu) {
  constexpr int64_t kDim = 7301;
  VulkanDevice& gpu = gpu_->Restart(kMuch, kMuch);
  for (const Range range : {Range::kOrdinary, Range::kWild}) {
    const OwnedMatrix values = MatrixOf(WeightFormat::kF32, 3 * kDim, 1, range);
    const std::vector<float> w = random_.Values(kDim, range);
    const OwnedMatrix next = MatrixOf(WeightFormat::kF32, 3, kDim);
    const auto run = [&](Device& device) {
      const DeviceFloats one(device, std::vector<float>{1.0f});
      const DeviceFloats all(device, 5 * kDim);
      float* const mixed = all.data() + 3 * kDim;
      float* const product = mixed + kDim;
      device.MatMul(values.view, one.data(), all.data(), 3 * kDim, 1);
      device.ResidualMix(mixed, all.data(), kDim, 2, all.data() + 2 * kDim, w.data(), 1, kDim,
                         1e-5f);
      device.RmsNorm(all.data(), all.data(), w.data(), 2, kDim, kDim, 1e-5f);
      device.MatMul(next.view, all.data(), product, 3, 2);  // reads what the norm laid out
      return all.Read();
    };
    ExpectSameBits(run(*plain_), run(gpu), "long rows");
  }
}

TEST_F(VulkanDeviceTest, TheHostWaitsOnlyForWhatItNeeds) {
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  const std::vector<OwnedMatrix> spine = SpineOfSequence();
  const auto experts = ExpertsOfSequence();
  const std::vector<float> x = random_.Values(64);
  const auto own = [&](size_t i) { return spine[i].view; };
  Shelf shelf(spine);
  device.SetExpertOrigin(&shelf);
  RunSequence(device, spine, experts, x, 1, own);
  const int64_t before = device.num_waits();
  RunSequence(device, spine, experts, x, 1, own);
  // For the piece that the host computes and the next one uses, and for the results.
  EXPECT_EQ(device.num_waits(), before + 2);
}

TEST_F(VulkanDeviceTest, ManyPositionsRunInSeveralTurns) {
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  const int64_t n = 1300;  // times 4096 columns is more than what is handed over at once
  const OwnedMatrix w = MatrixOf(WeightFormat::kBf16, 2, 4096);
  const std::vector<float> x = random_.Values(n * 4096);
  ExpectSameBits(Product(*plain_, w.view, x, n), Product(device, w.view, x, n), "many positions");
}

TEST_F(VulkanDeviceTest, WhatIsHeldNeedsNoData) {
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  const OwnedMatrix w = MatrixOf(WeightFormat::kInt8, 20, 160);
  const std::vector<float> x = random_.Values(160);
  const std::vector<float> want = Product(*plain_, w.view, x, 1);
  ExpectSameBits(want, Product(device, w.view, x, 1), "first");
  Matrix held = w.view;
  held.data = nullptr;
  held.scales = nullptr;
  ExpectSameBits(want, Product(device, held, x, 1), "held");
}

TEST_F(VulkanDeviceTest, PlacementNeverShows) {
  const std::vector<OwnedMatrix> spine = SpineOfSequence();
  const auto experts = ExpertsOfSequence();
  for (const int64_t n : {1, 5}) {
    const std::vector<float> x = random_.Values(n * 64);
    const auto own = [&](size_t i) { return spine[i].view; };
    const std::vector<float> want = RunSequence(*plain_, spine, experts, x, n, own);
    for (const uint64_t spine_bytes : {uint64_t{0}, uint64_t{12} << 10, kMuch}) {
      for (const uint64_t expert_bytes : {uint64_t{0}, uint64_t{60} << 10, kMuch}) {
        VulkanDevice& device = gpu_->Restart(spine_bytes, expert_bytes);
        for (int again = 0; again < 2; ++again) {
          ExpectSameBits(want, RunSequence(device, spine, experts, x, n, own),
                         deltafin::format("{} and {} bytes", spine_bytes, expert_bytes));
        }
        EXPECT_LE(device.held_bytes(), spine_bytes + expert_bytes);
        EXPECT_EQ(device.held_bytes() > 0, spine_bytes + expert_bytes > 0);
        EXPECT_FALSE(device.is_lost()) << gpu_->notice();
      }
    }
  }
}

TEST_F(VulkanDeviceTest, LessMemoryThanPlannedLeavesTheRestToTheHost) {
  const std::vector<OwnedMatrix> spine = SpineOfSequence();
  const auto experts = ExpertsOfSequence();
  const std::vector<float> x = random_.Values(64);
  const auto own = [&](size_t i) { return spine[i].view; };
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  GpuFaults faults;
  faults.most_bytes = 1;
  gpu_->gpu().SetFaults(faults);
  ExpectSameBits(RunSequence(*plain_, spine, experts, x, 1, own),
                 RunSequence(device, spine, experts, x, 1, own), "no memory");
  EXPECT_EQ(device.held_bytes(), 0u);
}

TEST_F(VulkanDeviceTest, ALostGpuCostsNoBit) {
  const std::vector<OwnedMatrix> spine = SpineOfSequence();
  const auto experts = ExpertsOfSequence();
  const int64_t n = 3;
  const std::vector<float> x = random_.Values(n * 64);
  const auto own = [&](size_t i) { return spine[i].view; };
  const std::vector<float> want = RunSequence(*plain_, spine, experts, x, n, own);
  bool finished = false;
  for (int64_t submits = 0; !finished; ++submits) {
    ASSERT_LT(submits, 100);
    VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
    Shelf shelf(spine);
    device.SetOrigin(&shelf);
    // What is held is not there otherwise.
    const auto held = [&](size_t i) {
      Matrix w = spine[i].view;
      if (device.Holds(w.id)) w.data = nullptr;
      return w;
    };
    ExpectSameBits(want, RunSequence(device, spine, experts, x, n, held), "before");
    LoseAfter(submits);
    ExpectSameBits(want, RunSequence(device, spine, experts, x, n, held),
                   deltafin::format("lost after {} submissions", submits));
    finished = !device.is_lost();
    EXPECT_EQ(gpu_->notice().empty(), finished);
    EXPECT_TRUE(!finished || submits >= 3);
    ExpectSameBits(want, RunSequence(device, spine, experts, x, n, held), "after");
    gpu_->gpu().SetFaults({});
  }
}

// A long pass has more of them than there is memory for.
TEST_F(VulkanDeviceTest, ExpertsOfALostGpuComeOneAfterTheOther) {
  constexpr size_t kExperts = 12;
  std::vector<OwnedMatrix> all;  // w1, w3, w2 of each
  for (size_t i = 0; i < 3 * kExperts; ++i) {
    const auto [rows, cols] = i % 3 == 2 ? std::pair{96, 64} : std::pair{64, 96};
    all.push_back(MatrixOf(WeightFormat::kMxfp4, rows, cols, Range::kOrdinary, kExpertIdBit));
  }
  const std::vector<float> x = random_.Values(96);
  const int32_t zero = 0;
  const auto run = [&](Device& device, bool has_data) {
    const DeviceFloats in(device, x);
    const DeviceFloats out(device, kExperts * 96);
    std::vector<int32_t> out_rows(kExperts);
    std::iota(out_rows.begin(), out_rows.end(), 0);
    std::vector<ExpertTask> tasks;
    for (size_t e = 0; e < kExperts; ++e) {
      ExpertWeights w{all[3 * e].view, all[3 * e + 1].view, all[3 * e + 2].view};
      if (!has_data) w.w1.data = w.w3.data = w.w2.data = nullptr;
      tasks.push_back({w, &zero, &out_rows[e], 1});
    }
    device.ExpertMlp(tasks, in.data(), out.data(), 96, {});
    device.Synchronize();
    return out.Read();
  };
  const std::vector<float> want = run(*plain_, true);
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  Shelf shelf(all);
  device.SetExpertOrigin(&shelf);
  ExpectSameBits(want, run(device, true), "held");
  LoseAfter(0);
  ExpectSameBits(want, run(device, false), "lost");
  EXPECT_TRUE(device.is_lost());
  ExpectSameBits(want, run(device, false), "lost before");
  EXPECT_LE(shelf.num_buffers(), 6u);
  EXPECT_GE(shelf.num_buffers(), 3u);
}

TEST_F(VulkanDeviceTest, WeightsThatNobodyHasAnyMoreAreAnError) {
  const OwnedMatrix w = MatrixOf(WeightFormat::kBf16, 20, 160);
  const std::vector<float> x = random_.Values(160);
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  Product(device, w.view, x, 1);
  Matrix held = w.view;
  held.data = nullptr;
  LoseAfter(0);
  EXPECT_THROW(Product(device, held, x, 1), Error);
  EXPECT_TRUE(device.is_lost());
  ExpectSameBits(Product(*plain_, w.view, x, 1), Product(device, w.view, x, 1), "with its data");
}

// Where memory is given back nobody hears of the error.
TEST_F(VulkanDeviceTest, WhatNobodyCouldComputeAgainIsNotRead) {
  const OwnedMatrix w = MatrixOf(WeightFormat::kBf16, 20, 160);
  const std::vector<float> x = random_.Values(160);
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  Product(device, w.view, x, 1);
  Matrix held = w.view;
  held.data = nullptr;
  const DeviceFloats in(device, x);
  const DeviceFloats out(device, 20);
  auto other = std::make_unique<DeviceFloats>(device, 20);
  device.MatMul(held, in.data(), out.data(), 20, 1);
  LoseAfter(0);
  other.reset();
  EXPECT_TRUE(device.is_lost());
  EXPECT_THROW(out.Read(), Error);
  EXPECT_THROW(device.Add(in.data(), out.data(), 20), Error);
  device.MatMul(w.view, in.data(), out.data(), 20, 1);  // with its data
  std::vector<float> got = out.Read();
  got.resize(23);
  std::vector<float> want = Product(*plain_, w.view, x, 1);
  want.resize(23);
  ExpectSameBits(want, got, "computed since");
}

// Work that takes longer than that in all, but goes on.
TEST_F(VulkanDeviceTest, AGpuIsSilentOnlyWhileItFinishesNothing) {
  constexpr uint64_t kBytes = uint64_t{64} << 20;
  constexpr double kSilence = 0.7;
  Gpu& gpu = gpu_->gpu();
  const GpuBuffer from(gpu, kBytes, MemoryUse::kScratch);
  const GpuBuffer to(gpu, kBytes, MemoryUse::kScratch);
  const auto copies = [&](int count) {
    GpuCommands commands = gpu.Begin();
    for (int i = 0; i < count; ++i) {
      commands.Copy(to, 0, from, 0, kBytes);
      commands.Barrier();
    }
    return gpu.Submit(commands);
  };
  const auto seconds_of = [&](const auto& run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  gpu.Wait(copies(1));
  const double one = seconds_of([&] { gpu.Wait(copies(4)); }) / 4;
  const int count = std::max(1, static_cast<int>(kSilence / 12 / one));
  GpuFaults faults;
  faults.silence_ns = static_cast<uint64_t>(kSilence * 1e9);
  gpu.SetFaults(faults);
  const double all = seconds_of([&] {
    uint64_t ticket = 0;
    for (int i = 0; i < 30; ++i) ticket = copies(count);
    EXPECT_NO_THROW(gpu.Wait(ticket));
  });
  EXPECT_GT(all, kSilence) << "too short to show anything";
}

TEST_F(VulkanDeviceTest, TellsWhereTheTimeWent) {
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  Gpu& gpu = gpu_->gpu();
  const OwnedMatrix w = MatrixOf(WeightFormat::kBf16, 64, 128);
  const std::vector<float> x(128, 0.5f);
  Product(device, w.view, x, 1);  // and the weights are there
  const GpuUse before = gpu.use();
  gpu.StartClock(true);
  Product(device, w.view, x, 1);
  const GpuUse use = gpu.use();
  gpu.StartClock(false);
  EXPECT_GT(use.submissions, before.submissions);
  EXPECT_GT(use.dispatches, before.dispatches);
  EXPECT_GT(use.barriers, before.barriers);
  EXPECT_GE(use.link_bytes, before.link_bytes + (128 + 64) * sizeof(float));
  EXPECT_GT(use.wait_seconds, before.wait_seconds);
  EXPECT_EQ(use.kinds.at("lay_out").count, 1u);
  uint64_t shaders = 0;
  double seconds = 0;
  for (const auto& [name, kind] : use.kinds) {
    if (name.find("copy") == std::string::npos) shaders += kind.count;
    seconds += kind.seconds;
  }
  EXPECT_EQ(shaders, use.dispatches - before.dispatches);
  EXPECT_GT(seconds, 0);
  EXPECT_GT(use.busy_seconds - before.busy_seconds, 0.99 * seconds);
}

// Nothing goes on that was not chosen.
TEST_F(VulkanDeviceTest, ASelfTestThatLosesTheGpuSaysThatAlone) {
  Gpu& gpu = gpu_->gpu();
  for (const int64_t submits : {0, 6, 30}) {
    GpuFaults faults;
    faults.submits_until_lost = submits;
    gpu.SetFaults(faults);
    const GpuVerdict verdict = TestGpu(gpu, MakeCpuDevice(gpu_->pool()), gpu_->pool());
    EXPECT_NE(verdict.problem.find("was lost"), std::string::npos) << verdict.problem;
    EXPECT_EQ(verdict.problem.find("CPU"), std::string::npos) << verdict.problem;
    gpu.SetFaults({});
  }
  EXPECT_EQ(TestGpu(gpu, MakeCpuDevice(gpu_->pool()), gpu_->pool()).problem, "");
}

// The host's bits in place of its own would say nothing of it.
TEST_F(VulkanDeviceTest, AGpuWithoutMemoryForTheSelfTestDoesNotPass) {
  const auto instance = VulkanInstance::Create();
  Gpu gpu(instance, TestGpuNumber(*instance));
  for (const uint64_t mebibytes : {1, 8, 40, 80, 120, 1000}) {
    GpuFaults faults;
    faults.most_bytes = mebibytes << 20;
    gpu.SetFaults(faults);
    const GpuVerdict verdict = TestGpu(gpu, MakeCpuDevice(gpu_->pool()), gpu_->pool());
    if (mebibytes == 1000) {
      EXPECT_EQ(verdict.problem, "");
    } else {
      EXPECT_NE(verdict.problem.find("memory"), std::string::npos) << mebibytes;
    }
  }
}

TEST_F(VulkanDeviceTest, ListsTheGpu) {
  const std::vector<GpuInfo> gpus = ListGpus();
  ASSERT_FALSE(gpus.empty());
  for (size_t i = 0; i < gpus.size(); ++i) {
    EXPECT_EQ(gpus[i].number, static_cast<int>(i));
    EXPECT_NE(gpus[i].name, "");
    EXPECT_GT(gpus[i].memory_bytes, 0u);
  }
}

}  // namespace
}  // namespace deltafin
