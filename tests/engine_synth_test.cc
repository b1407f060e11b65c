// Made-up checkpoints through the engine: finite, varied, and routed as they were asked to be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "deltafin/synth.h"
#include "engine/session_impl.h"
#include "engine_harness.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

// The picks of every layer, position after position.
class PickRecorder final : public TraceSink {
 public:
  void OnActivations(int64_t, TracePoint, std::span<const float> values, int64_t) override {
    for (const float value : values) max_value = std::max(max_value, std::abs(value));
  }
  void OnPicks(int64_t layer, std::span<const int32_t> ids, std::span<const float>,
               int64_t top_k) override {
    for (size_t i = 0; i < ids.size(); i += static_cast<size_t>(top_k)) {
      const auto row = ids.subspan(i, static_cast<size_t>(top_k));
      picks[layer].emplace_back(row.begin(), row.end());
    }
  }
  std::map<int64_t, std::vector<std::set<int32_t>>> picks;
  float max_value = 0;
};

struct Routing {
  double reuse = 0;     // part of the picks that the token before had too
  double most = 0;      // picks of a layer's busiest expert, in means
  double distinct = 0;  // part of a layer's experts that were ever picked
  float max_value = 0;
};

Routing MeasureRouting(const std::string& dir, int num_tokens) {
  const auto engine = OpenEngine(dir, 2);
  const auto session = engine->NewSession();
  PickRecorder recorder;
  dynamic_cast<SessionImpl&>(*session).set_trace(&recorder);
  std::mt19937 random(5);
  std::vector<TokenId> tokens;
  for (int i = 0; i < num_tokens; ++i) {
    tokens.push_back(
        static_cast<TokenId>(random() % static_cast<unsigned>(engine->info().vocab_size)));
  }
  session->Append(tokens, 0, nullptr, nullptr);
  Routing routing;
  routing.max_value = recorder.max_value;
  const double experts = static_cast<double>(engine->info().num_experts);
  for (const auto& [layer, rows] : recorder.picks) {
    std::map<int32_t, int> counts;
    double shared = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const int32_t id : rows[i]) {
        ++counts[id];
        shared += i > 0 && rows[i - 1].contains(id);
      }
    }
    const double picked = static_cast<double>(rows.size() * rows[0].size());
    int most = 0;
    for (const auto& [id, count] : counts) most = std::max(most, count);
    const double layers = static_cast<double>(recorder.picks.size());
    routing.reuse += shared / picked / layers;
    routing.most += most / (picked / experts) / layers;
    routing.distinct += static_cast<double>(counts.size()) / experts / layers;
  }
  return routing;
}

class EngineSynthTest : public ::testing::Test {
 protected:
  // Nano's widths: K3's would take minutes.
  std::string Make(double reuse, double skew, int64_t experts) {
    SynthOptions options;
    options.dir = dir_ / "model";
    options.like = SynthLike::kNano;
    options.layers = 9;
    options.experts = experts;
    options.reuse = reuse;
    options.skew = skew;
    WriteSynth(options);
    return options.dir;
  }

  const TempDir dir_;
};

TEST_F(EngineSynthTest, GeneratesFiniteVariedTokens) {
  const auto engine = OpenEngine(Make(0.3, 1, 16), 2);
  const auto session = engine->NewSession();
  const std::vector<TokenId> prompt =
      engine->tokenizer().Encode("the quick brown fox", Specials::kPlain);
  EXPECT_LT(prompt.size(), 12u);  // the vocabulary is used, not only its bytes
  const std::vector<TokenId> tokens = GenerateGreedy(*session, prompt, 40);
  EXPECT_GT(std::set<TokenId>(tokens.begin(), tokens.end()).size(), 20u);
  for (const float logit : session->last_logits()) ASSERT_TRUE(std::isfinite(logit));
}

// 200 tokens x 8 layers x 6 picks: the standard error of a part is below 0.005; the fit is good to
// 0.03 of correlation, which is 0.04 of reuse.
TEST_F(EngineSynthTest, ReuseIsCloseToWhatWasAsked) {
  const Routing routing = MeasureRouting(Make(0.35, 1, 64), 200);
  EXPECT_NEAR(routing.reuse, 0.35, 0.06);
  // Activations stay of the order of 1 (the longest here are about 12).
  EXPECT_LT(routing.max_value, 50);
}

TEST_F(EngineSynthTest, PicksAreSpread) {
  const Routing routing = MeasureRouting(Make(0.15, 1, 64), 200);
  EXPECT_NEAR(routing.reuse, 0.15, 0.05);
  // Each expert is picked 19 times on average: chance alone gives 1.7 means.
  EXPECT_LT(routing.most, 3);
  EXPECT_GT(routing.distinct, 0.97);
}

TEST_F(EngineSynthTest, SkewPrefersSomeExperts) {
  const Routing even = MeasureRouting(Make(0.15, 0, 64), 200);
  std::filesystem::remove_all(dir_ / "model");
  const Routing skewed = MeasureRouting(Make(0.15, 4, 64), 200);
  EXPECT_GT(skewed.most, even.most + 0.5);
}

// All zeros: routing ties everywhere, and logits of zero.
TEST_F(EngineSynthTest, SkeletonRuns) {
  SynthOptions options;
  options.dir = dir_ / "model";
  options.like = SynthLike::kNano;
  options.skeleton = true;
  WriteSynth(options);
  const auto engine = OpenEngine(options.dir, 2);
  const auto session = engine->NewSession();
  const std::vector<TokenId> tokens = GenerateGreedy(*session, std::vector<TokenId>{5, 6, 7}, 3);
  EXPECT_EQ(tokens, (std::vector<TokenId>{0, 0, 0}));
  for (const float logit : session->last_logits()) ASSERT_EQ(logit, 0);
}

}  // namespace
}  // namespace deltafin
