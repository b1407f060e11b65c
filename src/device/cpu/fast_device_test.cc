// What FastDevice divides up itself, at sizes where every division happens: waves of attention
// segments, batches of positions, pieces and batches of expert rows. Bits against the plain device.
#include <gtest/gtest.h>

#include <tuple>

#include "base/format.h"
#include "deltafin/error.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/plain_device.h"
#include "device/device_test_util.h"

namespace deltafin {
namespace {

class FastDeviceTest : public ::testing::TestWithParam<std::tuple<CpuIsa, int>> {
 protected:
  FastDeviceTest()
      : pool_(std::get<1>(GetParam())), device_(MakeCpuDevice(pool_, std::get<0>(GetParam()))) {}

  ThreadPool plain_pool_{2};
  PlainDevice plain_{plain_pool_};
  ThreadPool pool_;
  std::unique_ptr<Device> device_;
  Random random_{7};
};

// 14 segments: one thread computes 4 units at a time, three threads 12. 30 positions are more than
// one batch of either, and the border of a segment lies among them.
TEST_P(FastDeviceTest, AttentionInSeveralWavesAndBatches) {
  const MlaShape shape{13, 8, 5, 8, 19};
  const std::pair<int64_t, int64_t> cases[] = {{14000, 1}, {2030, 30}, {5110, 14}};
  for (const auto& [first, n] : cases) {
    const int64_t tokens = first + n;
    const std::vector<float> latents = random_.Values(tokens * shape.latent_dim());
    const std::vector<float> q = random_.Values(n * shape.num_heads * shape.latent_dim());
    const auto run = [&, begin = first, count = n](Device& device) {
      constexpr int64_t kPage = 4096;
      std::vector<DeviceBuffer> buffers;
      std::vector<void*> pages;
      for (int64_t t = 0; t < tokens; t += kPage) {
        buffers.emplace_back(device, static_cast<size_t>(kPage * shape.latent_dim()) * 4);
        pages.push_back(buffers.back().address());
      }
      const LatentCacheView cache{pages.data(), kPage, CacheFormat::kF32};
      const DeviceFloats in(device, latents), queries(device, q);
      const DeviceFloats out(device, count * shape.num_heads * shape.kv_lora);
      device.MlaAppend(cache, in.data(), 0, tokens, shape);
      device.MlaAttend(out.data(), queries.data(), cache, begin, count, shape, 0.2f);
      return out.Read();
    };
    ExpectSameBits(run(plain_), run(*device_), format("{} positions from {}", n, first));
  }
}

// Shows the pages of a cache only while they are provided: at any other time their addresses point
// at numbers that would spoil the result.
class HidingReader final : public PageReader {
 public:
  HidingReader(std::vector<void*> pages, int64_t page_tokens, void* spoiled, int64_t max_tokens)
      : real_(std::move(pages)),
        shown_(real_.size(), spoiled),
        page_tokens_(page_tokens),
        spoiled_(spoiled),
        max_tokens_(max_tokens) {}

  void* const* pages() const { return shown_.data(); }
  int64_t num_provided() const { return num_provided_; }

  void Begin(int64_t walks) override {
    walks_left_ = walks;
    next_ = 0;
  }
  int64_t max_tokens() const override { return max_tokens_; }
  void Provide(int64_t first, int64_t end) override {
    if (first == 0) --walks_left_;
    EXPECT_GE(walks_left_, 0);
    EXPECT_EQ(first, first == 0 ? 0 : next_);
    EXPECT_EQ(first % kProvidedTokens, 0);
    EXPECT_LE(end - first, max_tokens_);
    next_ = end;
    num_provided_ += end - first;
    std::fill(shown_.begin(), shown_.end(), spoiled_);
    for (int64_t page = first / page_tokens_; page * page_tokens_ < end; ++page) {
      shown_[page] = real_[page];
    }
    if (fails_at_ >= first && fails_at_ < end) throw Error(ErrorCode::kIo, "no page");
  }
  void FailAt(int64_t token) { fails_at_ = token; }
  int64_t walks_left() const { return walks_left_; }

 private:
  const std::vector<void*> real_;
  std::vector<void*> shown_;
  const int64_t page_tokens_;
  void* const spoiled_;
  const int64_t max_tokens_;
  int64_t walks_left_ = 0;
  int64_t next_ = 0;
  int64_t num_provided_ = 0;
  int64_t fails_at_ = -1;
};

TEST_P(FastDeviceTest, AttentionOverPagesThatComeOneAfterTheOther) {
  constexpr int64_t kPage = 256;
  const MlaShape shape{13, 8, 5, 8, 19};
  const std::tuple<int64_t, int64_t, int64_t> cases[] = {
      {9000, 1, 1024}, {9000, 1, 2048}, {2030, 130, 3072}, {1023, 2, 1024}, {0, 5, 1024}};
  for (const auto& [first, n, max_tokens] : cases) {
    const int64_t tokens = first + n;
    std::vector<DeviceBuffer> buffers;
    std::vector<void*> pages;
    for (int64_t t = 0; t < tokens + kPage; t += kPage) {
      buffers.emplace_back(*device_, static_cast<size_t>(kPage * shape.latent_dim()) * 4);
      pages.push_back(buffers.back().address());
    }
    const std::vector<float> spoiled(kPage * shape.latent_dim(), 1e30f);
    device_->ToDevice(pages.back(), spoiled.data(), spoiled.size() * sizeof(float));
    const DeviceFloats in(*device_, random_.Values(tokens * shape.latent_dim()));
    const DeviceFloats q(*device_, random_.Values(n * shape.num_heads * shape.latent_dim()));
    const DeviceFloats out(*device_, n * shape.num_heads * shape.kv_lora);
    LatentCacheView cache{pages.data(), kPage, CacheFormat::kF32};
    device_->MlaAppend(cache, in.data(), 0, tokens, shape);
    device_->MlaAttend(out.data(), q.data(), cache, first, n, shape, 0.2f);
    const std::vector<float> expected = out.Read();

    HidingReader reader(pages, kPage, pages.back(), max_tokens);
    cache.pages = reader.pages();
    cache.reader = &reader;
    device_->MlaAttend(out.data(), q.data(), cache, first, n, shape, 0.2f);
    ExpectSameBits(expected, out.Read(), format("{} positions from {}", n, first));
    EXPECT_EQ(reader.walks_left(), 0);
    EXPECT_LE(reader.num_provided(), 3 * tokens);

    reader.FailAt(tokens - 1);
    EXPECT_THROW(device_->MlaAttend(out.data(), q.data(), cache, first, n, shape, 0.2f), Error);
  }
}

// More rows than one piece of an expert (128), more pairs than one batch (1,024), and inner widths
// that are not whole groups of 128.
TEST_P(FastDeviceTest, ExpertsWithManyRows) {
  constexpr int64_t kLatent = 160, kWidth = 288, kPositions = 300, kExperts = 5;
  std::vector<OwnedMatrix> weights;
  std::vector<std::vector<int32_t>> in_rows(kExperts), out_rows(kExperts);
  std::vector<ExpertTask> tasks;
  int32_t outputs = 0;
  for (size_t e = 0; e < kExperts; ++e) {
    weights.push_back(random_.MatrixOf(WeightFormat::kMxfp4, kWidth, kLatent));
    weights.push_back(random_.MatrixOf(WeightFormat::kMxfp4, kWidth, kLatent));
    weights.push_back(random_.MatrixOf(WeightFormat::kMxfp4, kLatent, kWidth));
    for (int32_t p = 0; p < kPositions; ++p) {
      if (e == 3 && p != 17) continue;  // one row among many
      in_rows[e].push_back(kPositions - 1 - p);
      out_rows[e].push_back(outputs++);
    }
  }
  for (size_t e = 0; e < kExperts; ++e) {
    tasks.push_back({{weights[3 * e].view, weights[3 * e + 1].view, weights[3 * e + 2].view},
                     in_rows[e].data(),
                     out_rows[e].data(),
                     static_cast<int64_t>(in_rows[e].size())});
  }
  const std::vector<float> z = random_.Values(kPositions * kLatent);
  const auto run = [&](Device& device) {
    const DeviceFloats in(device, z), out(device, outputs * kLatent);
    device.ExpertMlp(tasks, in.data(), out.data(), kLatent, SituParams{});
    device.Synchronize();
    return out.Read();
  };
  ExpectSameBits(run(plain_), run(*device_), "experts");
}

// The scratch memory of a large call serves a small one, and grows from a small to a large one.
TEST_P(FastDeviceTest, SizesMayChangeFromCallToCall) {
  const std::tuple<int64_t, int64_t, int64_t> sizes[] = {
      {100, 700, 140}, {7, 33, 3}, {300, 2081, 49}, {48, 512, 17}, {1, 1, 1}, {49, 513, 129}};
  for (const auto& [rows, cols, n] : sizes) {
    const OwnedMatrix w = random_.MatrixOf(WeightFormat::kBf16, rows, cols);
    const std::vector<float> x = random_.Values(n * cols);
    const auto run = [&, height = rows, count = n](Device& device) {
      const DeviceFloats in(device, x), out(device, count * height);
      device.MatMul(w.view, in.data(), out.data(), height, count);
      return out.Read();
    };
    ExpectSameBits(run(plain_), run(*device_), format("[{}, {}] x {}", rows, cols, n));
  }
}

// Few positions take a block of columns after the other, and the last one what is left: also more
// than the 512 that are read together, but no multiple of them.
TEST_P(FastDeviceTest, FewPositionsTakeColumnsInBlocks) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kInt8}) {
    for (const int64_t cols : {544, 1600, 2208, 2688, 3648}) {
      const OwnedMatrix w = random_.MatrixOf(format, 21, cols);
      for (const int64_t n : {1, 2, 3, 4, 5, 7}) {
        const std::vector<float> x = random_.Values(n * cols);
        const auto run = [&, count = n](Device& device) {
          const DeviceFloats in(device, x), out(device, count * 21);
          device.MatMul(w.view, in.data(), out.data(), 21, count);
          return out.Read();
        };
        ExpectSameBits(run(plain_), run(*device_), deltafin::format("{} x {}", cols, n));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas, FastDeviceTest,
                         ::testing::Combine(::testing::ValuesIn(AvailableCpuIsas()),
                                            ::testing::Values(1, 3)),
                         [](const auto& parameters) {
                           std::string name(CpuIsaName(std::get<0>(parameters.param)));
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name + "_" + std::to_string(std::get<1>(parameters.param)) +
                                  "threads";
                         });

}  // namespace
}  // namespace deltafin
