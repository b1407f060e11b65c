#include "engine/draft_policy.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace deltafin {
namespace {

struct Outcome {
  double seconds = 0;  // of everything
  double tokens = 0;
  int64_t draft_passes = 0;
};

// A text of `tokens` tokens on a machine where a pass with k guesses costs 1 + slope * k, and each
// guess is right with probability p.
Outcome Simulate(double p, double slope, int64_t tokens, double noise = 0) {
  DraftPolicy policy;
  std::minstd_rand random(3);
  const auto chance = [&] { return static_cast<double>(random()) / 2147483647.0; };
  Outcome outcome;
  while (outcome.tokens < static_cast<double>(tokens)) {
    const double disturbed = 1 + noise * chance();
    const int64_t k = policy.Choose(4, 8);
    if (k == 0) {
      policy.RecordPlain(disturbed);
      outcome.seconds += disturbed;
      outcome.tokens += 1;
      continue;
    }
    int64_t accepted = 0;
    while (accepted < k && chance() < p) ++accepted;
    const double seconds = (1 + slope * static_cast<double>(k)) * disturbed;
    policy.RecordDraft(4, k, accepted, seconds);
    outcome.seconds += seconds;
    outcome.tokens += static_cast<double>(1 + accepted);
    ++outcome.draft_passes;
  }
  return outcome;
}

// Whatever guesses are worth and passes cost, at most 2 % over one second per token.
TEST(DraftPolicyTest, NeverCostsMoreThanTwoPercent) {
  for (double p : {0.0, 0.1, 0.3, 0.5, 0.7, 0.9}) {
    for (double slope : {0.0, 0.1, 0.3, 0.6, 1.0}) {
      for (int64_t tokens : {60, 200, 1000, 10'000}) {
        const Outcome outcome = Simulate(p, slope, tokens);
        EXPECT_LE(outcome.seconds, 1.02 * outcome.tokens) << p << ' ' << slope << ' ' << tokens;
      }
    }
  }
}

TEST(DraftPolicyTest, UsesLongDraftsWhereTheyPay) {
  const Outcome cheap = Simulate(0.95, 0.05, 1000);
  EXPECT_LT(cheap.seconds, 0.35 * cheap.tokens);
  const Outcome fair = Simulate(0.8, 0.3, 1000);
  EXPECT_LT(fair.seconds, 0.85 * fair.tokens);
}

TEST(DraftPolicyTest, StopsWhereTheyDoNot) {
  const Outcome wrong = Simulate(0.0, 0.3, 10'000);
  EXPECT_LT(wrong.draft_passes, 400);
  // Every extra position as dear as a pass of its own: nothing to win even with good guesses.
  const Outcome dear = Simulate(0.9, 1.0, 10'000);
  EXPECT_LT(dear.draft_passes, 1000);
}

// One disturbed measurement must not switch it off for good, nor on.
TEST(DraftPolicyTest, SurvivesNoise) {
  const Outcome outcome = Simulate(0.9, 0.1, 2000, 1.0);
  EXPECT_LT(outcome.seconds, 0.75 * outcome.tokens);  // a plain pass costs 1.5 on average
}

TEST(DraftPolicyTest, WithoutAMatchOrATimeThereIsNoDraft) {
  DraftPolicy policy;
  EXPECT_EQ(policy.Choose(20, 8), 0);  // what a pass costs is not known
  policy.RecordPlain(1);
  EXPECT_EQ(policy.Choose(0, 8), 0);
  EXPECT_EQ(policy.Choose(20, 0), 0);
  EXPECT_GT(policy.Choose(20, 8), 0);
}

}  // namespace
}  // namespace deltafin
