#include "model/sequence_state.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/thread_pool.h"
#include "deltafin/error.h"
#include "device/cpu/cpu_device.h"

namespace deltafin {
namespace {

// Layers 0 and 2 are KDA, layer 1 is MLA.
ModelConfig SmallConfig() {
  ModelConfig config;
  config.num_layers = 3;
  config.is_mla = {false, true, false};
  config.kda_heads = 2;
  config.kda_head_dim = 8;
  config.conv_kernel = 4;
  config.kv_lora_rank = 10;
  config.qk_rope_head_dim = 6;
  return config;
}

class SequenceStateTest : public testing::Test {
 protected:
  ThreadPool pool_{1};
  std::unique_ptr<Device> device_ = MakeCpuDevice(pool_);
  ModelConfig config_ = SmallConfig();

  // Fills everything that `tokens` tokens leave behind with distinct values.
  void Fill(SequenceState& state, int64_t tokens) {
    state.Reserve(tokens);
    float next = 1;
    const auto fill = [&](void* address, size_t count) {
      for (size_t i = 0; i < count; ++i) static_cast<float*>(address)[i] = next++;
    };
    for (int64_t layer : {0, 2}) {
      fill(state.kda_state(layer), 2 * 8 * 8);
      for (int which = 0; which < 3; ++which) fill(state.conv_history(layer, which), 3 * 16);
    }
    const LatentCacheView cache = state.BeginAppend(1, 0, tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      float* page = static_cast<float*>(cache.pages[t / cache.page_tokens]);
      fill(page + (t % cache.page_tokens) * 16, 16);
    }
    state.Advance(tokens);
  }
};

TEST_F(SequenceStateTest, RestoresIntoAnotherSequence) {
  for (int64_t tokens : {1, 256, 257, 700}) {
    SequenceState a(config_, *device_, CacheFormat::kF32);
    Fill(a, tokens);
    const std::vector<std::byte> saved = a.Save();
    SequenceState b(config_, *device_, CacheFormat::kF32);
    Fill(b, 300);
    b.Restore(saved);
    EXPECT_EQ(b.num_tokens(), tokens);
    EXPECT_EQ(b.Save(), saved);
  }
}

TEST_F(SequenceStateTest, ClearIsAnEmptySequence) {
  SequenceState fresh(config_, *device_, CacheFormat::kF32);
  SequenceState used(config_, *device_, CacheFormat::kF32);
  Fill(used, 400);
  used.Clear();
  EXPECT_EQ(used.Save(), fresh.Save());
}

// Growing must not move what is there: a pass holds addresses of pages.
TEST_F(SequenceStateTest, GrowingKeepsPages) {
  SequenceState state(config_, *device_, CacheFormat::kF32);
  state.Reserve(1);
  void* const first = state.BeginAppend(1, 0, 1).pages[0];
  state.Reserve(10'000);
  EXPECT_EQ(state.BeginAppend(1, 0, 1).pages[0], first);
}

TEST_F(SequenceStateTest, RefusesWhatDoesNotFit) {
  SequenceState state(config_, *device_, CacheFormat::kF32);
  Fill(state, 5);
  const std::vector<std::byte> saved = state.Save();

  SequenceState other_format(config_, *device_, CacheFormat::kBf16);
  EXPECT_THROW(other_format.Restore(saved), Error);
  ModelConfig other_config = config_;
  other_config.kda_heads = 3;
  SequenceState other_model(other_config, *device_, CacheFormat::kF32);
  EXPECT_THROW(other_model.Restore(saved), Error);
  for (size_t size : {size_t{0}, size_t{7}, saved.size() - 1}) {
    EXPECT_THROW(state.Restore(std::span(saved).first(size)), Error);
  }
  std::vector<std::byte> longer = saved;
  longer.push_back(std::byte{0});
  EXPECT_THROW(state.Restore(longer), Error);
  EXPECT_EQ(state.Save(), saved);  // a refused state changes nothing
}

TEST_F(SequenceStateTest, BytesCountsWholePages) {
  const uint64_t kda = 2 * (2 * 8 * 8 + 3 * 3 * 16) * sizeof(float);
  EXPECT_EQ(SequenceState::Bytes(config_, CacheFormat::kF32, 0), kda);
  EXPECT_EQ(SequenceState::Bytes(config_, CacheFormat::kF32, 1), kda + 256 * 16 * 4);
  EXPECT_EQ(SequenceState::Bytes(config_, CacheFormat::kBf16, 257), kda + 512 * 16 * 2);
}

}  // namespace
}  // namespace deltafin
