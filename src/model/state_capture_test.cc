#include "model/state_capture.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"

namespace deltafin {
namespace {

// Layers 0 and 2 are KDA, layer 1 is MLA.
class StateCaptureTest : public testing::Test {
 protected:
  StateCaptureTest() {
    config_.num_layers = 3;
    config_.is_mla = {false, true, false};
    config_.kda_heads = 2;
    config_.kda_head_dim = 8;
    config_.conv_kernel = 4;
    config_.kv_lora_rank = 10;
    config_.qk_rope_head_dim = 6;
  }
  // As a pass of n tokens would leave it.
  void Advance(SequenceState& state, int64_t n) {
    state.Reserve(state.num_tokens() + n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t token = state.num_tokens() + i;
      const std::vector<float> latent(16, static_cast<float>(token));
      device_->MlaAppend(state.BeginAppend(1, token, 1), latent.data(), token, 1,
                         MlaShape{2, 4, 6, 4, 10});
    }
    state.Advance(n);
    for (int64_t layer : {0, 2}) {
      for (int i = 0; i < 128; ++i) {
        state.kda_state(layer)[i] = static_cast<float>(state.num_tokens() * (layer + 1) + i);
      }
      for (int which = 0; which < 3; ++which) {
        state.conv_history(layer, which)[5] = static_cast<float>(state.num_tokens() + which);
      }
    }
  }

  ThreadPool pool_{1};
  std::unique_ptr<Device> device_ = MakeCpuDevice(pool_);
  ModelConfig config_;
};

TEST_F(StateCaptureTest, IsTheStateOfTheTokensBefore) {
  for (int64_t tokens : {1, 200, 256, 300}) {
    SequenceState state(config_, *device_, CacheFormat::kF32);
    Advance(state, tokens);
    const std::vector<std::byte> there = state.Save();
    StateCapture capture(config_, *device_, tokens);
    for (int64_t layer : {0, 2}) {
      for (int which = 0; which < 3; ++which) capture.KeepHistory(state, layer, which);
      capture.KeepKda(state, layer);
    }
    Advance(state, 300);
    EXPECT_NE(state.Save(), there);
    EXPECT_EQ(state.Save(&capture), there);
    EXPECT_EQ(state.SavedBytes(&capture), there.size());
  }
}

}  // namespace
}  // namespace deltafin
