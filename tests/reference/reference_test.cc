// Proves the reference model against gold that it had no part in: the released code in float64
// (tests/data/official) and an independent float64 program (tests/data/nano).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/comparison.h"
#include "reference/oracle_data.h"
#include "reference/reference_model.h"
#include "shared_data.h"

namespace deltafin::reference {
namespace {

// Gold stored as float32 carries one rounding, 2^-24 of the value. Float64 itself contributes up to
// 2e-12 on these models (the released code's own prefill against decode); 1e-10 leaves room.
constexpr double kF32Rounding = 0x1p-24;
constexpr double kF64Noise = 1e-10;

// The greatest difference in units of what rounding to float32 allows: at most 1 when equal.
double F32Units(const Vec& got, const Vec& gold) {
  EXPECT_EQ(got.size(), gold.size());
  double max = 0;
  for (size_t i = 0; i < gold.size() && i < got.size(); ++i) {
    const double allowed = std::abs(got[i]) * kF32Rounding + kF64Noise;
    const double units = std::abs(got[i] - gold[i]) / allowed;
    if (std::isnan(units)) return units;
    max = std::max(max, units);
  }
  return max;
}

double MaxAbsDiff(const Vec& got, const Vec& gold) {
  EXPECT_EQ(got.size(), gold.size());
  double max = 0;
  for (size_t i = 0; i < gold.size() && i < got.size(); ++i) {
    const double diff = std::abs(got[i] - gold[i]);
    if (std::isnan(diff)) return diff;
    max = std::max(max, diff);
  }
  return max;
}

Vec Concatenate(const std::vector<Vec>& rows) {
  Vec all;
  for (const Vec& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

Vec AllLogits(const std::vector<StepResult>& steps) {
  Vec all;
  for (const StepResult& step : steps) {
    all.insert(all.end(), step.logits.begin(), step.logits.end());
  }
  return all;
}

const Weights& OfficialWeights() {
  static const Weights weights = LoadWeights(OfficialModelDir());
  return weights;
}

const Weights& NanoWeights() {
  static const Weights weights = LoadWeights(NanoDir());
  return weights;
}

// The same picks with ascending experts, as the official oracle lists them.
Routing SortedByExpert(const Routing& routing) {
  std::vector<size_t> order(routing.experts.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return routing.experts[a] < routing.experts[b]; });
  Routing sorted;
  for (const size_t i : order) {
    sorted.experts.push_back(routing.experts[i]);
    sorted.weights.push_back(routing.weights[i]);
  }
  return sorted;
}

TEST(OfficialReference, LogitsAndEverySublayer) {
  const OfficialOracle oracle = LoadOfficialOracle();
  ASSERT_EQ(oracle.prompts.size(), 5U);
  int traced = 0;
  for (const OfficialPrompt& prompt : oracle.prompts) {
    SCOPED_TRACE(prompt.name);
    NamedTensors trace;
    const auto steps = RunTokens(OfficialWeights(), prompt.ids, &trace);
    EXPECT_LE(F32Units(AllLogits(steps), prompt.logits), 1.0);
    for (const auto& [name, gold] : prompt.trace) {
      EXPECT_LE(F32Units(trace.at(name), gold), 1.0) << name;
      ++traced;
    }
  }
  EXPECT_EQ(traced, 2 * (13 * 5 + 2));
}

TEST(OfficialReference, Routing) {
  for (const OfficialPrompt& prompt : LoadOfficialOracle().prompts) {
    if (prompt.routing.empty()) continue;
    SCOPED_TRACE(prompt.name);
    const auto steps = RunTokens(OfficialWeights(), prompt.ids);
    for (size_t layer = 1; layer < prompt.routing.size(); ++layer) {
      for (size_t pos = 0; pos < steps.size(); ++pos) {
        const Routing got = SortedByExpert(steps[pos].routing[layer]);
        const Routing& gold = prompt.routing[layer].at(pos);
        EXPECT_EQ(got.experts, gold.experts);
        EXPECT_LE(MaxAbsDiff(got.weights, gold.weights), kF64Noise);
      }
    }
  }
}

TEST(OfficialReference, GreedyIdsAndTheirLogits) {
  int compared = 0;
  for (const OfficialPrompt& prompt : LoadOfficialOracle().prompts) {
    if (prompt.greedy_ids.empty()) continue;
    SCOPED_TRACE(prompt.name);
    const auto count = static_cast<int64_t>(prompt.greedy_ids.size());
    const GreedyResult greedy = Greedy(OfficialWeights(), prompt.ids, count);
    EXPECT_EQ(greedy.ids, prompt.greedy_ids);
    EXPECT_LE(MaxAbsDiff(greedy.margins, prompt.greedy_margins), kF64Noise);
    EXPECT_LE(F32Units(Concatenate(greedy.logits), prompt.greedy_logits), 1.0);
    EXPECT_NEAR(greedy.router_margins.back(), prompt.min_router_margin, kF64Noise);
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

// Gold in float64 allows 1e-10; float32 tensors (the q, k, v, g and the states at half time) their
// rounding.
TEST(NanoReference, TraceOfEveryIntermediate) {
  const NanoTrace oracle = LoadNanoTrace();
  const Weights& weights = NanoWeights();
  Session session(weights);
  NamedTensors got;
  std::vector<Vec> logits;
  const auto save_states = [&](const std::string& suffix) {
    for (int64_t layer = 0; layer < weights.config.num_layers; ++layer) {
      if (weights.config.is_mla[layer]) continue;
      const std::string prefix = (layer < 10 ? "L0" : "L") + std::to_string(layer) + ".";
      got[prefix + "kda_state" + suffix] = session.kda_state(layer);
      got[prefix + "conv_state" + suffix] = session.conv_state(layer);
    }
  };
  for (size_t pos = 0; pos < oracle.ids.size(); ++pos) {
    if (static_cast<int64_t>(pos) == oracle.half) save_states("_half");
    const StepResult step = session.Step(oracle.ids[pos], &got);
    logits.push_back(step.logits);
    for (int64_t layer = 1; layer < weights.config.num_layers; ++layer) {
      const Routing& routing = step.routing[layer];
      const std::string prefix = (layer < 10 ? "L0" : "L") + std::to_string(layer) + ".router_";
      for (size_t i = 0; i < routing.experts.size(); ++i) {
        got[prefix + "idx"].push_back(routing.experts[i]);
        got[prefix + "w"].push_back(routing.weights[i]);
      }
      got[prefix + "margin"].push_back(routing.margin);
    }
  }
  save_states("");
  got["logits"] = Concatenate(logits);
  for (const auto& [name, gold] : oracle.tensors) {
    ASSERT_TRUE(got.contains(name)) << name;
    const bool stored_as_f32 =
        name.find("_half") != std::string::npos || name.find(".kda_q") != std::string::npos ||
        name.find(".kda_k") != std::string::npos || name.find(".kda_v") != std::string::npos ||
        name.find(".kda_g") != std::string::npos;
    if (stored_as_f32) {
      EXPECT_LE(F32Units(got.at(name), gold), 1.0) << name;
    } else {
      EXPECT_LE(MaxAbsDiff(got.at(name), gold), kF64Noise) << name;
    }
  }
}

// Five prompts: short and long, raw and chat, and number 19 with a router margin of 2e-7.
TEST(NanoReference, PromptsLogitsRouterAndGreedy) {
  for (const NanoPrompt& prompt : LoadNanoPrompts()) {
    static constexpr int64_t kChosen[] = {0, 5, 10, 16, 19};
    if (std::find(std::begin(kChosen), std::end(kChosen), prompt.id) == std::end(kChosen)) continue;
    SCOPED_TRACE("prompt " + std::to_string(prompt.id));
    const std::vector<TokenId> ids = prompt.AllIds();
    const auto steps = RunTokens(NanoWeights(), ids);

    if (!prompt.logits.empty()) {
      Vec logits = AllLogits(steps);
      logits.resize(prompt.logits.size());  // gold ends with the prompt
      EXPECT_LE(F32Units(logits, prompt.logits), 1.0);
    }
    for (size_t i = 0; i < prompt.greedy_ids.size(); ++i) {
      Vec logits = steps[prompt.ids.size() - 1 + i].logits;
      const auto best = std::max_element(logits.begin(), logits.end());
      EXPECT_EQ(best - logits.begin(), prompt.greedy_ids[i]) << i;
      const double first = *best;
      *best = -std::numeric_limits<double>::infinity();
      const double second = *std::max_element(logits.begin(), logits.end());
      EXPECT_NEAR(first - second, prompt.greedy_margins[i], 1e-9) << i;  // nine decimals stored
    }
    for (size_t layer = 1; layer < prompt.routing.size(); ++layer) {
      for (size_t pos = 0; pos < ids.size(); ++pos) {
        const Routing& got = steps[pos].routing[layer];
        const Routing& gold = prompt.routing[layer].at(pos);
        EXPECT_EQ(got.experts, gold.experts) << layer << " " << pos;
        EXPECT_LE(F32Units(got.weights, gold.weights), 1.0);
        EXPECT_LE(F32Units({got.margin}, {gold.margin}), 1.0);
      }
    }
  }
}

// A continuation with a state: the first 250 tokens of the held-out text.
TEST(NanoReference, NegativeLogLikelihood) {
  constexpr size_t kTokens = 250;
  const NanoNll oracle = LoadNanoNll();
  const auto steps = RunTokens(NanoWeights(), std::span(oracle.ids).first(kTokens));
  for (size_t pos = 0; pos + 1 < kTokens; ++pos) {
    const Vec& logits = steps[pos].logits;
    const auto best = std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - *best);
    EXPECT_NEAR(std::log(sum) + *best - logits[oracle.ids[pos + 1]], oracle.nll[pos], kF64Noise);
    EXPECT_EQ(best - logits.begin(), oracle.argmax[pos]);
    for (size_t layer = 1; layer < oracle.experts.size(); ++layer) {
      EXPECT_EQ(steps[pos].routing[layer].experts, oracle.experts[layer].at(pos));
    }
  }
}

}  // namespace
}  // namespace deltafin::reference
