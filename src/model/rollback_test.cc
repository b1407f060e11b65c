#include "model/rollback.h"

#include <gtest/gtest.h>

#include <random>

#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"

namespace deltafin {
namespace {

constexpr int64_t kHeads = 2;
constexpr int64_t kDim = 8;
constexpr int64_t kWidth = kHeads * kDim;

// Layers 0 and 2 are KDA, layer 1 is MLA.
ModelConfig RollbackConfig() {
  ModelConfig config;
  config.num_layers = 3;
  config.is_mla = {false, true, false};
  config.kda_heads = kHeads;
  config.kda_head_dim = kDim;
  config.conv_kernel = 4;
  config.kv_lora_rank = 10;
  config.qk_rope_head_dim = 6;
  return config;
}

// What a pass does to the state of a sequence, with inputs that depend on the token alone.
class RollbackTest : public testing::Test {
 protected:
  static std::vector<float> Rows(int64_t first, int64_t count, int64_t width, uint32_t salt) {
    std::vector<float> rows;
    for (int64_t t = first; t < first + count; ++t) {
      std::minstd_rand random(static_cast<uint32_t>(t) * 31 + salt);
      for (int64_t i = 0; i < width; ++i) {
        rows.push_back(static_cast<float>(random()) * 0x1p-31f + 0.01f);
      }
    }
    return rows;
  }

  void Pass(SequenceState& state, int64_t count, Rollback* rollback) {
    const int64_t first = state.num_tokens();
    state.Reserve(first + count);
    if (rollback) rollback->Begin(state, count);
    const std::vector<float> taps(kWidth * 4, 0.5f);
    std::vector<float> out(static_cast<size_t>(count * kWidth));
    for (int64_t layer : {0, 2}) {
      const auto salt = static_cast<uint32_t>(layer * 10);
      for (int which = 0; which < 3; ++which) {
        const auto x = Rows(first, count, kWidth, salt + which);
        if (rollback) rollback->KeepProjection(layer, which, x.data());
        device_->ShortConv(out.data(), x.data(), taps.data(), state.conv_history(layer, which),
                           count, kWidth);
      }
      const auto q = Rows(first, count, kWidth, salt + 3), k = Rows(first, count, kWidth, salt + 4);
      const auto v = Rows(first, count, kWidth, salt + 5);
      const auto alpha = Rows(first, count, kWidth, salt + 6);
      const auto beta = Rows(first, count, kHeads, salt + 7);
      if (rollback) rollback->KeepRecurrence(layer, k.data(), v.data(), alpha.data(), beta.data());
      device_->KdaRecurrence(out.data(), state.kda_state(layer), q.data(), k.data(), v.data(),
                             alpha.data(), beta.data(), count, kHeads, kDim);
    }
    const auto latent = Rows(first, count, 16, 99);
    device_->MlaAppend(state.BeginAppend(1, first, count), latent.data(), first, count,
                       MlaShape{2, 4, 6, 4, 10});
    state.EndAppend(1, first, count);
    state.Advance(count);
  }

  ThreadPool pool_{2};
  std::unique_ptr<Device> device_ = MakeCpuDevice(pool_);
  ModelConfig config_ = RollbackConfig();
};

TEST_F(RollbackTest, AnyNumberOfTokensCanBeKept) {
  for (CacheFormat format : {CacheFormat::kF32, CacheFormat::kBf16}) {
    for (int64_t before : {0, 1, 2, 5, 254}) {  // 254: the pass crosses a page of the cache
      for (int64_t count = 1; count <= 9; ++count) {
        for (int64_t kept = 0; kept <= count; ++kept) {
          Rollback rollback(config_, *device_, 9);
          SequenceState state(config_, *device_, format);
          SequenceState expected(config_, *device_, format);
          state.Clear();
          expected.Clear();
          if (before > 0) {
            Pass(state, before, nullptr);
            Pass(expected, before, nullptr);
          }
          if (kept > 0) Pass(expected, kept, nullptr);
          Pass(state, count, &rollback);
          rollback.Undo(state, kept);
          ASSERT_TRUE(state.Save() == expected.Save())
              << before << " tokens, " << kept << " of " << count;
        }
      }
    }
  }
}

TEST_F(RollbackTest, BytesAreWhatItAllocates) {
  // Per KDA layer: state, histories, three projections, k, v, alpha, beta; once: unused output.
  const uint64_t layer = kHeads * kDim * kDim + 3 * 3 * kWidth + 5 * (6 * kWidth + kHeads);
  EXPECT_EQ(Rollback::Bytes(config_, 5), (2 * layer + 5 * kWidth) * sizeof(float));
}

}  // namespace
}  // namespace deltafin
