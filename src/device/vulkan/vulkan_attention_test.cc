// KDA, MLA and the router on the GPU against the CPU, bit by bit, and what becomes of values that
// stay on the GPU.
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "base/format.h"
#include "device/device_test_util.h"
#include "device/vulkan/vulkan_device.h"
#include "device/vulkan/vulkan_test_util.h"

namespace deltafin {
namespace {

constexpr uint64_t kMuch = uint64_t{1} << 28;

struct MlaCase {
  MlaShape shape;
  WeightFormat weights;
  std::vector<int64_t> passes;
};

class VulkanAttentionTest : public GpuTest {
 protected:
  // A matrix whose product with 1 is these values: that puts them where the GPU computes.
  OwnedMatrix Source(const std::vector<float>& values) {
    OwnedMatrix w = MakeMatrix(WeightFormat::kF32, std::ssize(values), 1);
    std::memcpy(w.data.data(), values.data(), values.size() * sizeof(float));
    w.view.id = ++last_id_;
    return w;
  }
  OwnedMatrix Source(int64_t count, Range range = Range::kOrdinary) {
    return Source(random_.Values(count, range));
  }
  // What RunMla takes: latents and queries of each pass.
  std::vector<OwnedMatrix> InputsOf(const MlaCase& c, Range range = Range::kOrdinary) {
    std::vector<OwnedMatrix> inputs;
    for (const int64_t n : c.passes) {
      inputs.push_back(Source(n * c.shape.latent_dim(), range));
      inputs.push_back(Source(n * c.shape.num_heads * c.shape.query_dim(), range));
    }
    return inputs;
  }
  // Decays and gates between 0 and 1.
  OwnedMatrix Fractions(int64_t count) {
    std::vector<float> values = random_.Values(count);
    for (float& value : values) value = 0.25f + std::fabs(value) * 0.375f;
    return Source(values);
  }

  ThreadPool one_thread_{1};
  std::unique_ptr<Device> plain_ = MakeCpuDevice(one_thread_, CpuIsa::kPlain);
  Random random_{4711};
  uint64_t last_id_ = 0;
};

class VulkanKdaTest : public VulkanAttentionTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Flushes, VulkanKdaTest, ::testing::Bool());

TEST_P(VulkanKdaTest, HasTheBitsOfTheCpu) {
  VulkanDevice& gpu = gpu_->Restart(kMuch, kMuch, GetParam());
  for (const Range range : {Range::kOrdinary, Range::kWild}) {
    for (const auto& size : {std::pair{1, 3}, {2, 33}, {3, 128}}) {
      const int64_t heads = size.first;
      const int64_t dim = size.second;
      for (const int64_t n : {1, 2, 9, 18}) {
        const int64_t width = heads * dim;
        const int64_t count = n * width;
        std::vector<OwnedMatrix> sources;  // q, k, v, f
        for (int i = 0; i < 4; ++i) sources.push_back(Source(count, range));
        const OwnedMatrix betas = Source(n * heads);
        const std::vector<float> state = random_.Values(heads * dim * dim, range);
        const std::vector<float> history = random_.Values(3 * width, range);
        const std::vector<float> conv = random_.Values(4 * width, range);
        const std::vector<float> a_log = random_.Values(heads);
        const std::vector<float> bias = random_.Values(width);
        const auto run = [&](Device& device) {
          const DeviceFloats one(device, std::vector<float>{1.0f});
          const DeviceFloats states(device, state);
          const DeviceFloats histories(device, history);
          const DeviceFloats work(device, 6 * count + n * heads);
          float* const x = work.data();
          float* const y = x + 4 * count;
          float* const beta = y + 2 * count;
          for (int i = 0; i < 4; ++i) {
            device.MatMul(sources[i].view, one.data(), x + i * count, count, 1);
          }
          device.MatMul(betas.view, one.data(), beta, n * heads, 1);
          device.ShortConv(y, x, conv.data(), histories.data(), n, width);
          device.L2Normalize(x + count, n * heads, dim, 0.3f);
          device.KdaGates(x + 3 * count, beta, a_log.data(), bias.data(), n, heads, dim, -5.0f);
          device.KdaRecurrence(y + count, states.data(), y, x + count, x + 2 * count, x + 3 * count,
                               beta, n, heads, dim);
          std::vector<float> all = work.Read();
          for (const DeviceFloats* floats : {&states, &histories}) {
            const std::vector<float> values = floats->Read();
            all.insert(all.end(), values.begin(), values.end());
          }
          return all;
        };
        const int64_t waits = gpu.num_waits();
        const std::vector<float> got = run(gpu);
        ExpectSameBits(run(*plain_), got, deltafin::format("[{}, {}] x {}", heads, dim, n));
        EXPECT_LE(gpu.num_waits(), waits + 3);  // only to read the results
        EXPECT_FALSE(gpu.is_lost()) << gpu_->notice();
      }
    }
  }
}

// What states go through: steps, copies to and fro, being read, set and forgotten, in any order.
class KeptStates {
 public:
  static constexpr int64_t kHeads = 2;
  static constexpr int64_t kDim = 8;
  static constexpr int64_t kWidth = kHeads * kDim;
  static constexpr int64_t kMostSteps = 20;

  KeptStates(Device& device, const std::vector<OwnedMatrix>& sources,
             const std::vector<float>& conv)
      : device_(device), sources_(sources), conv_(conv) {
    const float one = 1.0f;
    device.ToDevice(one_.address(), &one, sizeof(one));
  }

  void Do(uint32_t what, uint32_t random) {
    const size_t which = random % 2;
    DeviceBuffer& state = states_[which];
    DeviceBuffer& history = histories_[which];
    switch (what) {
      default:
        Step(which, what < 8 ? 1 + random / 2 % 3 : random / 2 % 5 == 0 ? kMostSteps : 4, random);
        break;
      case 0:
        device_.Copy(saved_.address(), state.address(), kStateBytes);
        device_.Copy(saved_history_.address(), history.address(), kHistoryBytes);
        break;
      case 1:
        device_.Copy(state.address(), saved_.address(), kStateBytes);
        device_.Copy(history.address(), saved_history_.address(), kHistoryBytes);
        break;
      case 2:
        Read(random % 3 == 0 ? state : history);
        break;
      case 3: {
        const std::vector<float> zeros(kStateBytes / sizeof(float));
        device_.ToDevice(state.address(), zeros.data(), random % 3 == 0 ? 64 : kStateBytes);
        break;
      }
      case 4:  // a row, of what the last step was fed
        device_.Copy(history.floats() + random % 3 * kWidth, work_.floats() + kWidth,
                     kWidth * sizeof(float));
        break;
      case 5:
        saved_ = DeviceBuffer();
        saved_ = DeviceBuffer(device_, kStateBytes);
        break;
      case 6:
        device_.Add(state.floats(), work_.floats(), kWidth);
        break;
    }
  }

  std::vector<float> Results() {
    for (const DeviceBuffer* buffer :
         {&states_[0], &states_[1], &histories_[0], &histories_[1], &saved_, &saved_history_}) {
      Read(*buffer);
    }
    return results_;
  }

 private:
  static constexpr size_t kStateBytes = kHeads * kDim * kDim * sizeof(float);
  static constexpr size_t kHistoryBytes = 3 * kWidth * sizeof(float);

  void Step(size_t which, int64_t n, uint32_t random) {
    const int64_t count = n * kWidth;
    float* const x = work_.floats();
    float* const k = x + count;
    for (size_t i = 0; i < 5; ++i) {  // out, k, v, alpha, beta
      Matrix w = sources_[(random + i) % 4 + (i >= 3 ? 4 : 0)].view;
      w.rows = i == 4 ? n * kHeads : count;
      w.id = w.id * 1000 + static_cast<uint64_t>(w.rows);
      device_.MatMul(w, one_.floats(), x + static_cast<int64_t>(i) * count, w.rows, 1);
    }
    device_.ShortConv(x, k, conv_.data(), histories_[which].floats(), n, kWidth);
    device_.L2Normalize(k, n * kHeads, kDim, 1.0f);
    device_.KdaRecurrence(x, states_[which].floats(), k, k, k + count, k + 2 * count, k + 3 * count,
                          n, kHeads, kDim);
    Read(work_);
  }
  void Read(const DeviceBuffer& buffer) {
    std::vector<float> values(buffer.size_bytes() / sizeof(float));
    device_.ToHost(values.data(), buffer.address(), buffer.size_bytes());
    results_.insert(results_.end(), values.begin(), values.end());
  }

  Device& device_;
  const std::vector<OwnedMatrix>& sources_;
  const std::vector<float>& conv_;
  DeviceBuffer one_{device_, sizeof(float)};
  DeviceBuffer work_{device_, 5 * kMostSteps* kWidth * sizeof(float)};
  std::array<DeviceBuffer, 2> states_{DeviceBuffer(device_, kStateBytes),
                                      DeviceBuffer(device_, kStateBytes)};
  std::array<DeviceBuffer, 2> histories_{DeviceBuffer(device_, kHistoryBytes),
                                         DeviceBuffer(device_, kHistoryBytes)};
  DeviceBuffer saved_{device_, kStateBytes};
  DeviceBuffer saved_history_{device_, kHistoryBytes};
  std::vector<float> results_;
};

TEST_F(VulkanAttentionTest, StatesThatStayOnTheGpuAreNeverLost) {
  std::vector<OwnedMatrix> sources;
  for (int i = 0; i < 4; ++i)
    sources.push_back(Source(KeptStates::kMostSteps * KeptStates::kWidth));
  for (int i = 0; i < 4; ++i) {
    sources.push_back(Fractions(KeptStates::kMostSteps * KeptStates::kWidth));
  }
  const std::vector<float> conv = random_.Values(4 * KeptStates::kWidth);
  int lost = 0;
  for (int run = 0; run < 60; ++run) {
    std::vector<std::pair<uint32_t, uint32_t>> program(40);
    for (auto& [what, random] : program) {
      what = random_.Bits() % 20;
      random = random_.Bits() >> 8;
    }
    const auto results = [&](Device& device) {
      KeptStates states(device, sources, conv);
      for (const auto& [what, random] : program) states.Do(what, random);
      return states.Results();
    };
    const uint64_t journal = std::array<uint64_t, 3>{0, 4000, kMuch}[run % 3];
    VulkanDevice& device = gpu_->Restart(kMuch, kMuch, false, true, journal);
    GpuFaults faults;
    if (run % 2 == 1) faults.submits_until_lost = random_.Bits() % 60;
    gpu_->gpu().SetFaults(faults);
    ExpectSameBits(results(*plain_), results(device), deltafin::format("program {}", run));
    EXPECT_TRUE(run % 2 == 1 || !device.is_lost()) << gpu_->notice();
    lost += device.is_lost();
    gpu_->gpu().SetFaults({});
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(lost, 10);
}

// A step with everything there: one wait for its output, and the state is not brought along.
TEST_F(VulkanAttentionTest, AStateThatStaysIsNotWaitedFor) {
  VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
  constexpr int64_t kDim = 16;
  const OwnedMatrix row = Source(kDim);
  const OwnedMatrix decay = Fractions(kDim);
  const DeviceFloats one(device, std::vector<float>{1.0f});
  const DeviceFloats state(device, random_.Values(kDim * kDim));
  const DeviceFloats work(device, 3 * kDim);
  float* const k = work.data() + kDim;
  std::vector<float> out(kDim);
  for (int token = 0; token < 5; ++token) {
    const int64_t waits = device.num_waits();
    device.MatMul(row.view, one.data(), k, kDim, 1);
    device.MatMul(decay.view, one.data(), k + kDim, kDim, 1);
    device.KdaRecurrence(work.data(), state.data(), k, k, k, k + kDim, k + kDim, 1, 1, kDim);
    device.ToHost(out.data(), work.data(), out.size() * sizeof(float));
    EXPECT_EQ(device.num_waits(), waits + 1);
  }
  const int64_t waits = device.num_waits();
  state.Read();
  EXPECT_EQ(device.num_waits(), waits + 2);  // the fences beside it are the host's
}

// ---- MLA and the router ----

class VulkanMlaTest : public VulkanAttentionTest,
                      public ::testing::WithParamInterface<std::tuple<bool, CacheFormat>> {};
INSTANTIATE_TEST_SUITE_P(Flushes, VulkanMlaTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(CacheFormat::kF32,
                                                              CacheFormat::kBf16)));

// Long ones only add to the cache.
constexpr int64_t kMostAttending = 100;

// Passes over one cache, whose pages are where the device has them.
std::vector<float> RunMla(Device& device, const MlaCase& c, CacheFormat format, const Matrix& kv_b,
                          const std::vector<OwnedMatrix>& inputs) {
  constexpr int64_t kPageTokens = 128;
  const MlaShape& shape = c.shape;
  const DeviceBuffer one(device, sizeof(float));
  const float value = 1.0f;
  device.ToDevice(one.address(), &value, sizeof(value));
  std::vector<DeviceBuffer> pages;
  std::vector<void*> addresses;
  std::vector<float> all;
  int64_t first = 0;
  for (size_t pass = 0; pass < c.passes.size(); ++pass) {
    const int64_t n = c.passes[pass];
    while (std::ssize(pages) * kPageTokens < first + n) {
      pages.emplace_back(device,
                         static_cast<size_t>(kPageTokens * shape.latent_dim()) * sizeof(float));
      addresses.push_back(pages.back().address());
    }
    const int64_t rows = n * shape.num_heads;
    const DeviceFloats latent(device, n * shape.latent_dim());
    const DeviceFloats q(device, rows * shape.query_dim());
    const DeviceFloats absorbed(device, rows * shape.latent_dim());
    const DeviceFloats attended(device, rows * shape.kv_lora);
    const DeviceFloats values(device, rows * shape.v_dim);
    const Matrix& latents = inputs[2 * pass].view;
    const Matrix& queries = inputs[2 * pass + 1].view;
    device.MatMul(latents, one.floats(), latent.data(), latents.rows, 1);
    device.MatMul(queries, one.floats(), q.data(), queries.rows, 1);
    const LatentCacheView view{addresses.data(), kPageTokens, format};
    if (n > kMostAttending) {
      device.MlaAppend(view, latent.data(), first, n, shape);
      first += n;
      continue;
    }
    device.MlaAbsorbQuery(absorbed.data(), kv_b, q.data(), n, shape);
    device.MlaAppend(view, latent.data(), first, n, shape);
    device.MlaAttend(attended.data(), absorbed.data(), view, first, n, shape, 0.3f);
    device.MlaExpandValue(values.data(), kv_b, attended.data(), n, shape);
    for (const DeviceFloats* floats : {&values, &absorbed, &attended}) {
      const std::vector<float> part = floats->Read();
      all.insert(all.end(), part.begin(), part.end());
    }
    first += n;
  }
  for (const DeviceBuffer& page : pages) {
    std::vector<float> bytes(page.size_bytes() / sizeof(float));
    device.ToHost(bytes.data(), page.address(), page.size_bytes());
    // As halves: a float of two values may be no number.
    const auto* const halves = reinterpret_cast<const uint16_t*>(bytes.data());
    all.insert(all.end(), halves, halves + bytes.size() * 2);
  }
  return all;
}

TEST_P(VulkanMlaTest, HasTheBitsOfTheCpu) {
  const auto [flushes, format] = GetParam();
  VulkanDevice& gpu = gpu_->Restart(kMuch, kMuch, flushes);
  const std::vector<MlaCase> cases = {
      {{2, 16, 6, 12, 32}, WeightFormat::kF32, {1, 1, 3, 57, 1, 9, 1}},
      {{3, 7, 4, 5, 40}, WeightFormat::kInt8, {12, 1}},
      {{1, 16, 8, 16, 512}, WeightFormat::kBf16, {66, 1}},
      {{2, 8, 2, 8, 30}, WeightFormat::kBf16, {1020, 2, 1, 12, 1030, 1}},
  };
  for (const MlaCase& c : cases) {
    for (const Range range : {Range::kOrdinary, Range::kWild}) {
      OwnedMatrix kv_b =
          random_.MatrixOf(c.weights, c.shape.num_heads * (c.shape.nope_dim + c.shape.v_dim),
                           c.shape.kv_lora, range);
      kv_b.view.id = ++last_id_;
      const std::vector<OwnedMatrix> inputs = InputsOf(c, range);
      ExpectSameBits(RunMla(*plain_, c, format, kv_b.view, inputs),
                     RunMla(gpu, c, format, kv_b.view, inputs),
                     deltafin::format("kv_lora {}", c.shape.kv_lora));
      EXPECT_FALSE(gpu.is_lost()) << gpu_->notice();
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(VulkanAttentionTest, ALostGpuLosesNoLatentCache) {
  const MlaCase c{{2, 16, 6, 12, 32}, WeightFormat::kF32, {3, 1, 130, 1}};
  OwnedMatrix kv_b = random_.MatrixOf(c.weights, 2 * 28, 32);
  kv_b.view.id = ++last_id_;
  const std::vector<OwnedMatrix> inputs = InputsOf(c);
  const std::vector<float> want = RunMla(*plain_, c, CacheFormat::kF32, kv_b.view, inputs);
  bool finished = false;
  for (int64_t submits = 0; !finished; ++submits) {
    ASSERT_LT(submits, 100);
    VulkanDevice& device = gpu_->Restart(kMuch, kMuch);
    LoseAfter(submits);
    ExpectSameBits(want, RunMla(device, c, CacheFormat::kF32, kv_b.view, inputs),
                   deltafin::format("lost after {} submissions", submits));
    finished = !device.is_lost();
    gpu_->gpu().SetFaults({});
  }
}

// What is merged has next to no room: a position at a time, each handed over by itself.
TEST_F(VulkanAttentionTest, ALongAttentionIsHandedOverInTurns) {
  constexpr int64_t kPositions = 12;
  const MlaCase c{{2, 8, 2, 8, 30}, WeightFormat::kBf16, {1020, 2, 5, kPositions}};
  OwnedMatrix kv_b = random_.MatrixOf(c.weights, 2 * 16, 30);
  kv_b.view.id = ++last_id_;
  const std::vector<OwnedMatrix> inputs = InputsOf(c);
  const std::vector<float> want = RunMla(*plain_, c, CacheFormat::kF32, kv_b.view, inputs);
  const auto submissions = [&](uint64_t span_bytes) {
    VulkanDevice& device = gpu_->Restart(kMuch, kMuch, false, true, 1 << 20, span_bytes);
    const uint64_t before = gpu_->gpu().use().submissions;
    ExpectSameBits(want, RunMla(device, c, CacheFormat::kF32, kv_b.view, inputs), "turns");
    EXPECT_FALSE(device.is_lost());
    return gpu_->gpu().use().submissions - before;
  };
  const uint64_t at_once = submissions(kMuch);
  const uint64_t in_turns = submissions(1);
  EXPECT_GE(in_turns, at_once + kPositions - 1);
  for (uint64_t submits = in_turns - kPositions - 8; submits < in_turns; submits += 3) {
    VulkanDevice& device = gpu_->Restart(kMuch, kMuch, false, true, 1 << 20, 1);
    LoseAfter(static_cast<int64_t>(submits));
    ExpectSameBits(want, RunMla(device, c, CacheFormat::kF32, kv_b.view, inputs), "lost");
    EXPECT_TRUE(device.is_lost());
    gpu_->gpu().SetFaults({});
  }
}

// A cache that the host had, of a session that was restored, say: the memory plan has no room for
// another one.
TEST_F(VulkanAttentionTest, ALongCacheComesThroughLittleMemory) {
  constexpr MlaShape kShape{1, 8, 128, 8, 512};
  constexpr int64_t kPageTokens = 256;
  constexpr int64_t kPages = 180;  // of 0.6 MiB
  constexpr int64_t kTokens = kPages * kPageTokens;
  std::vector<float> cached(static_cast<size_t>(kTokens * kShape.latent_dim()));
  for (size_t i = 0; i < cached.size(); ++i) {
    cached[i] = static_cast<float>(i * 2654435761u % 65536) * 0x1p-16f - 0.5f;
  }
  const OwnedMatrix queries = Source(kShape.latent_dim());
  const auto run = [&](Device& device) {
    const DeviceFloats one(device, std::vector<float>{1.0f});
    const DeviceFloats cache(device, cached);
    std::vector<void*> pages;
    for (int64_t page = 0; page < kPages; ++page) {
      pages.push_back(cache.data() + page * kPageTokens * kShape.latent_dim());
    }
    const DeviceFloats absorbed(device, kShape.latent_dim());
    const DeviceFloats attended(device, kShape.kv_lora);
    device.MatMul(queries.view, one.data(), absorbed.data(), kShape.latent_dim(), 1);
    device.MlaAttend(attended.data(), absorbed.data(),
                     {pages.data(), kPageTokens, CacheFormat::kF32}, kTokens - 1, 1, kShape, 0.2f);
    return attended.Read();
  };
  VulkanDevice& gpu = gpu_->Restart(kMuch, kMuch);
  ExpectSameBits(run(*plain_), run(gpu), "long cache");
  EXPECT_FALSE(gpu.is_lost());
  EXPECT_LE(gpu.staging_bytes(), uint64_t{96} << 20);
}

TEST_F(VulkanAttentionTest, TheRouterPicksAsTheCpuDoes) {
  VulkanDevice& gpu = gpu_->Restart(kMuch, kMuch);
  for (const auto& size : {std::pair{5, 5}, {130, 8}, {896, 16}}) {
    const int64_t experts = size.first;
    const int64_t top_k = size.second;
    for (const bool ties : {false, true}) {
      constexpr int64_t kPositions = 3;
      std::vector<float> logits = random_.Values(kPositions * experts);
      std::vector<float> bias = random_.Values(experts);
      for (float& value : logits) value = ties ? std::round(value * 2) : value * 4;
      for (float& value : bias) value = ties ? 0.0f : value * 0.1f;
      const OwnedMatrix source = Source(logits);
      const RouterParams params{experts, top_k, !ties || experts > 100, 2.5f};
      const auto run = [&](Device& device) {
        const DeviceFloats one(device, std::vector<float>{1.0f});
        const DeviceFloats in(device, kPositions * experts);
        device.MatMul(source.view, one.data(), in.data(), source.view.rows, 1);
        std::vector<int32_t> ids(static_cast<size_t>(kPositions * top_k));
        std::vector<float> all(ids.size());
        device.RouterTopK(ids.data(), all.data(), in.data(), bias.data(), kPositions, params);
        all.insert(all.end(), ids.begin(), ids.end());
        return all;
      };
      const int64_t waits = gpu.num_waits();
      const std::vector<float> got = run(gpu);
      EXPECT_EQ(gpu.num_waits(), waits + 2);  // for the picks, and when memory is given back
      ExpectSameBits(run(*plain_), got, deltafin::format("{} of {}", top_k, experts));
    }
  }
}

}  // namespace
}  // namespace deltafin
