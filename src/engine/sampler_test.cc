#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "deltafin/error.h"
#include "engine/exp_of_negative.h"

namespace deltafin {
namespace {

std::vector<float> RandomLogits(size_t size, uint32_t seed, float spread) {
  std::minstd_rand random(seed);
  std::vector<float> logits(size);
  for (float& logit : logits) {
    logit = spread * (static_cast<float>(random() >> 7) * 0x1p-24f - 0.5f);
  }
  return logits;
}

// The distribution by definition: everything sorted, every filter applied to all tokens.
std::vector<double> NaiveDistribution(std::span<const float> logits, const SamplingOptions& o,
                                      std::span<const TokenId> text, size_t first_generated) {
  const size_t size = logits.size();
  std::vector<double> adjusted(logits.begin(), logits.end());
  for (size_t id = 0; id < size; ++id) {
    const auto token = static_cast<TokenId>(id);
    const auto in_text = std::count(text.begin(), text.end(), token);
    const auto generated = text.subspan(first_generated);
    const auto in_generated = std::count(generated.begin(), generated.end(), token);
    if (in_text > 0) {
      adjusted[id] *= adjusted[id] > 0 ? 1 / o.repetition_penalty : o.repetition_penalty;
    }
    if (in_generated > 0) adjusted[id] -= o.presence_penalty;
    adjusted[id] -= o.frequency_penalty * static_cast<double>(in_generated);
    for (const auto& [biased, bias] : o.logit_bias) {
      if (biased == token) adjusted[id] += bias;
    }
  }
  const double highest = *std::max_element(adjusted.begin(), adjusted.end());
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return adjusted[a] > adjusted[b]; });
  std::vector<double> p(size);
  for (size_t id = 0; id < size; ++id) p[id] = std::exp((adjusted[id] - highest) / o.temperature);
  const auto normalise = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
  };
  if (o.top_k > 0) {
    for (size_t i = static_cast<size_t>(o.top_k); i < size; ++i) p[order[i]] = 0;
  }
  normalise();
  if (o.top_p < 1) {
    double sum = 0;
    for (size_t id : order) {
      if (sum >= o.top_p) p[id] = 0;
      sum += p[id];
    }
  }
  for (size_t id : order) {
    if (p[id] < o.min_p * p[order[0]]) p[id] = 0;
  }
  normalise();
  return p;
}

// Draws at positions first, first + 1, ... with the text held still but for its length.
std::vector<int> Draws(std::span<const float> logits, const SamplingOptions& options, int count) {
  std::vector<int> seen(logits.size());
  Sampler sampler(options, std::ssize(logits));
  std::vector<TokenId> text;
  for (int i = 0; i < count; ++i) {
    ++seen[sampler.Choose(logits, text, 0)];
    text.push_back(0);
  }
  return seen;
}

// Pearson's statistic over the tokens that are expected at least 5 times; the others are one class.
// Returns {statistic, degrees of freedom}.
std::pair<double, int> ChiSquare(const std::vector<int>& seen, const std::vector<double>& p,
                                 int count) {
  double statistic = 0, rest_expected = 0, rest_seen = 0;
  int classes = 0;
  for (size_t id = 0; id < p.size(); ++id) {
    const double expected = p[id] * count;
    if (expected < 5) {
      rest_expected += expected;
      rest_seen += seen[id];
      continue;
    }
    statistic += (seen[id] - expected) * (seen[id] - expected) / expected;
    ++classes;
  }
  if (rest_expected > 0) {
    statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++classes;
  }
  return {statistic, classes - 1};
}

struct Case {
  const char* name;
  SamplingOptions options;
};

std::vector<Case> FilterCases() {
  std::vector<Case> cases(9);
  for (Case& c : cases) c.options.temperature = 1;
  cases[0].name = "temperature 1";
  cases[1].name = "temperature 0.5";
  cases[1].options.temperature = 0.5;
  cases[2].name = "temperature 3";
  cases[2].options.temperature = 3;
  cases[3].name = "top-k";
  cases[3].options.top_k = 7;
  cases[4].name = "top-p";
  cases[4].options.top_p = 0.8;
  cases[5].name = "min-p";
  cases[5].options.min_p = 0.1;
  cases[6].name = "top-k, top-p and min-p";
  cases[6].options.top_k = 40;
  cases[6].options.top_p = 0.9;
  cases[6].options.min_p = 0.02;
  cases[7].name = "penalties";
  cases[7].options.repetition_penalty = 1.3;
  cases[7].options.presence_penalty = 0.7;
  cases[7].options.frequency_penalty = 0.2;
  cases[8].name = "bias";
  cases[8].options.logit_bias = {{3, 2.5}, {90, -4}};
  return cases;
}

// With f degrees of freedom the statistic has mean f and variance 2 f; mean + 5 deviations is
// passed by chance less than once in 10^5 (f >= 5). Seeds are fixed: a failure is a change.
TEST(SamplerTest, DrawsFollowTheExactDistribution) {
  constexpr int kDraws = 20'000;
  const std::vector<float> logits = RandomLogits(100, 1, 8);
  for (const Case& c : FilterCases()) {
    SamplingOptions options = c.options;
    // The penalties see a text that grows; they have their own tests below.
    options.repetition_penalty = 1;
    options.presence_penalty = options.frequency_penalty = 0;
    const std::vector<double> p = NaiveDistribution(logits, options, {}, 0);
    for (uint64_t seed : {1ull, 0xffffffffffffffffull}) {
      options.seed = seed;
      const std::vector<int> seen = Draws(logits, options, kDraws);
      const auto [statistic, freedom] = ChiSquare(seen, p, kDraws);
      EXPECT_LT(statistic, freedom + 5 * std::sqrt(2.0 * freedom)) << c.name << " seed " << seed;
      for (size_t id = 0; id < p.size(); ++id) {
        if (p[id] == 0) {
          EXPECT_EQ(seen[id], 0) << c.name << ", token " << id;
        }
      }
    }
  }
}

// The same draw from the naive distribution, by its definition: the first token, in descending
// order, at which the cumulative probability passes the uniform number.
TEST(SamplerTest, EveryFilterAgreesWithTheNaiveOne) {
  std::minstd_rand random(5);
  for (const Case& c : FilterCases()) {
    for (int i = 0; i < 300; ++i) {
      const std::vector<float> logits =
          RandomLogits(1 + random() % 300, static_cast<uint32_t>(random()), 12);
      SamplingOptions options = c.options;
      options.seed = random();
      std::erase_if(options.logit_bias, [&](auto& b) { return b.first >= std::ssize(logits); });
      options.top_k = std::min<int64_t>(options.top_k, std::ssize(logits));
      std::vector<TokenId> text(random() % 30);
      for (TokenId& id : text) id = static_cast<TokenId>(random() % logits.size());
      const size_t first_generated = text.empty() ? 0 : random() % text.size();

      const std::vector<double> p = NaiveDistribution(logits, options, text, first_generated);
      const double uniform = PositionUniform(options.seed, text.size());
      std::vector<size_t> order(p.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
      double sum = 0, margin = 1;
      size_t expected = order[0];
      for (size_t id : order) {
        margin = std::min(margin, std::abs(sum - uniform));
        if (sum > uniform) break;
        if (p[id] > 0) expected = id;
        sum += p[id];
      }
      if (margin < 1e-12) continue;  // the two ways to round may differ there
      Sampler sampler(options, std::ssize(logits));
      ASSERT_EQ(sampler.Choose(logits, text, first_generated), static_cast<TokenId>(expected))
          << c.name << ", case " << i;
    }
  }
}

// A few refusals, and so many that every token is asked about.
TEST(SamplerTest, WhatIsAllowedKeepsItsProportions) {
  constexpr int kDraws = 20'000;
  const std::vector<float> logits = RandomLogits(200, 3, 8);
  SamplingOptions options;
  options.temperature = 1.1;
  for (int modulus : {2, 40}) {
    const auto allowed = [modulus](TokenId id) { return id % modulus == 1; };
    options.seed = static_cast<uint64_t>(modulus);
    Sampler sampler(options, std::ssize(logits));
    std::vector<int> seen(logits.size());
    std::vector<TokenId> text;
    for (int i = 0; i < kDraws; ++i) {
      ++seen[sampler.Choose(logits, text, 0, allowed)];
      text.push_back(0);
    }
    std::vector<double> p = NaiveDistribution(logits, options, {}, 0);
    for (size_t id = 0; id < p.size(); ++id) {
      if (!allowed(static_cast<TokenId>(id))) p[id] = 0;
    }
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (size_t id = 0; id < p.size(); ++id) {
      p[id] /= sum;
      if (p[id] == 0) {
        EXPECT_EQ(seen[id], 0);
      }
    }
    const auto [statistic, freedom] = ChiSquare(seen, p, kDraws);
    EXPECT_LT(statistic, freedom + 5 * std::sqrt(2.0 * freedom)) << modulus;
  }
}

TEST(SamplerTest, AConstraintThatAllowsTheChoiceChangesNothing) {
  const std::vector<float> logits = RandomLogits(100, 5, 4);
  for (double temperature : {0.0, 1.0}) {
    SamplingOptions options;
    options.temperature = temperature;
    Sampler sampler(options, 100);
    for (int i = 0; i < 50; ++i) {
      const std::vector<TokenId> text(static_cast<size_t>(i));
      int asked = 0;
      const TokenId free = sampler.Choose(logits, text, 0);
      EXPECT_EQ(sampler.Choose(logits, text, 0, [&](TokenId) { return ++asked > 0; }), free);
      EXPECT_EQ(asked, 1);
    }
    EXPECT_THROW(sampler.Choose(logits, {}, 0, [](TokenId) { return false; }), Error);
  }
}

TEST(SamplerTest, GreedyTakesTheBestThatIsAllowed) {
  const std::vector<float> logits = {1, 9, 8, 9, 3};
  Sampler sampler({}, 5);
  std::vector<TokenId> asked;
  const auto allows = [&](TokenId id) {
    asked.push_back(id);
    return id == 4;
  };
  EXPECT_EQ(sampler.Choose(logits, {}, 0, allows), 4);
  EXPECT_EQ(asked, (std::vector<TokenId>{1, 3, 2, 4}));
}

TEST(SamplerTest, GreedyTakesTheLowestIdOnTies) {
  const std::vector<float> logits = {1, 3, -2, 3, 3};
  EXPECT_EQ(Sampler({}, 5).Choose(logits, {}, 0), 1);
  SamplingOptions biased;
  biased.logit_bias = {{1, -1}};
  EXPECT_EQ(Sampler(biased, 5).Choose(logits, {}, 0), 3);
  SamplingOptions penalised;
  penalised.repetition_penalty = 2;
  EXPECT_EQ(Sampler(penalised, 5).Choose(logits, std::vector<TokenId>{1, 3}, 2), 4);
  SamplingOptions top_1;
  top_1.temperature = 1;
  top_1.top_k = 1;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    top_1.seed = seed;
    EXPECT_EQ(Sampler(top_1, 5).Choose(logits, {}, 0), 1);
  }
}

// Presence and frequency penalties leave the prompt alone.
TEST(SamplerTest, PenaltiesCountWhatWasGenerated) {
  const std::vector<float> logits = {2.0f, 1.0f, 0.9f};
  SamplingOptions options;
  options.frequency_penalty = 0.6;
  const std::vector<TokenId> text = {0, 0, 0, 0};
  EXPECT_EQ(Sampler(options, 3).Choose(logits, text, 4), 0);
  EXPECT_EQ(Sampler(options, 3).Choose(logits, text, 3), 0);  // 2 - 0.6
  EXPECT_EQ(Sampler(options, 3).Choose(logits, text, 2), 1);  // 2 - 1.2
  options.frequency_penalty = 0;
  options.presence_penalty = 0.6;
  EXPECT_EQ(Sampler(options, 3).Choose(logits, text, 0), 0);  // 2 - 0.6, however often
}

// What a seed gives is part of the contract: these numbers were computed from the definition
// with exact integers, by another program.
TEST(SamplerTest, UniformNumbersAreFixed) {
  EXPECT_EQ(PositionUniform(0, 0), 0x1.c4415072f63b9p-1);
  EXPECT_EQ(PositionUniform(0, 1), 0x1.b9e279aa86e58p-2);
  EXPECT_EQ(PositionUniform(1, 0), 0x1.7fdf0061bb85ap-1);
  EXPECT_EQ(PositionUniform(42, 1000), 0x1.b021712762231p-1);
}

// Against the C library, whose error is under 1 ulp: two different roundings of the same number.
TEST(SamplerTest, ExpIsWithinTwoUlpOfTheLibrary) {
  for (double x = 0; x > -708; x -= 0.0371) {
    const double expected = std::exp(x);
    ASSERT_NEAR(ExpOfNegative(x), expected, expected * 0x1p-51) << x;
  }
  EXPECT_EQ(ExpOfNegative(0), 1);
  EXPECT_EQ(ExpOfNegative(-1e300), 0);
}

TEST(SamplerTest, ManyPowersHaveTheBitsOfEachByItself) {
  std::vector<double> values = {0,    -0.0,   -708,    -708.0000001,
                                -709, -1e300, -1e-300, -std::numeric_limits<double>::infinity()};
  for (double x = 0; x > -720; x -= 0.0713) values.push_back(x);
  std::vector<double> powers = values;
  ExpOfNegatives(powers);
  for (size_t i = 0; i < values.size(); ++i) {
    // The definition, with the C library's rounding and scaling.
    const double n = std::nearbyint(values[i] * 0x1.71547652b82fep+0);
    double r = std::fma(n, -0x1.62e42fefa39efp-1, values[i]);
    r = std::fma(n, -0x1.abc9e3b39803fp-56, r);
    double y = 1.0 / 6227020800.0;
    double factorial = 479001600;
    for (int degree = 12; degree >= 0; factorial /= std::max(1, degree), --degree) {
      y = std::fma(y, r, 1 / factorial);
    }
    const double expected = values[i] >= -708 ? std::ldexp(y, static_cast<int>(n)) : 0;
    EXPECT_EQ(powers[i], expected) << values[i];
    EXPECT_EQ(ExpOfNegative(values[i]), expected) << values[i];
  }
}

TEST(SamplerTest, LogprobsAreTheModelsOwn) {
  const std::vector<float> logits = {1, 2, 3, 2};
  const PositionLogprobs result = LogprobsOf(logits, 0, 3);
  const double log_sum = std::log(std::exp(1.0) + 2 * std::exp(2.0) + std::exp(3.0));
  // Double arithmetic on numbers near 1: a few ulp.
  EXPECT_NEAR(result.chosen, 1 - log_sum, 1e-14);
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].id, 2);
  EXPECT_EQ(result.top[1].id, 1);
  EXPECT_EQ(result.top[2].id, 3);
  EXPECT_NEAR(result.top[1].logprob, 2 - log_sum, 1e-14);
  EXPECT_EQ(LogprobsOf(logits, 0, 10).top.size(), 4u);
}

TEST(SamplerTest, ImpossibleValuesAreRefusedByName) {
  const double nan = std::nan("");
  const auto message = [](const std::function<void(SamplingOptions&)>& change) -> std::string {
    SamplingOptions options;
    change(options);
    try {
      Sampler sampler(options, 10);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "accepted";
  };
  using O = SamplingOptions;
  for (double bad : {-1.0, 1e-9, 101.0, nan}) {
    EXPECT_EQ(message([&](O& o) { o.temperature = bad; }).rfind("temperature", 0), 0u) << bad;
  }
  for (double bad : {0.0, -0.1, 1.1, nan}) {
    EXPECT_EQ(message([&](O& o) { o.top_p = bad; }).rfind("top-p", 0), 0u) << bad;
  }
  for (double bad : {-0.1, 1.0, nan}) {
    EXPECT_EQ(message([&](O& o) { o.min_p = bad; }).rfind("min-p", 0), 0u) << bad;
  }
  for (double bad : {0.0, -1.0, 1e-308, 101.0, nan}) {
    EXPECT_EQ(message([&](O& o) { o.repetition_penalty = bad; }).rfind("repetition", 0), 0u) << bad;
  }
  for (double bad : {-101.0, 101.0, nan}) {
    EXPECT_EQ(message([&](O& o) { o.presence_penalty = bad; }).rfind("presence", 0), 0u) << bad;
    EXPECT_EQ(message([&](O& o) { o.frequency_penalty = bad; }).rfind("frequency", 0), 0u) << bad;
    EXPECT_EQ(message([&](O& o) { o.logit_bias = {{1, bad}}; }).rfind("logit bias", 0), 0u) << bad;
  }
  EXPECT_EQ(message([](O& o) { o.top_k = -1; }).rfind("top-k", 0), 0u);
  EXPECT_EQ(message([](O& o) { o.logit_bias = {{10, 1}}; }).rfind("logit bias", 0), 0u);
  EXPECT_EQ(message([](O& o) { o.logit_bias = {{-1, 1}}; }).rfind("logit bias", 0), 0u);
  EXPECT_EQ(message([](O& o) { o.logit_bias = {{1, 1}, {1, 2}}; }).rfind("logit bias", 0), 0u);
  EXPECT_EQ(message([](O& o) { o.temperature = 0.7; }), "accepted");
}

}  // namespace
}  // namespace deltafin
