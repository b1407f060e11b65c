#include "engine/pass_policy.h"

#include <gtest/gtest.h>

namespace deltafin {
namespace {

// Seconds that prompts and answers got in 10,000 passes; a pass takes `answer` and, for prompts,
// `prompt` more.
double ShareOfPrompts(bool weights_in_ram, double answer, double prompt) {
  PassPolicy policy(512, weights_in_ram);
  double prompts = 0, all = 0;
  for (int i = 0; i < 10'000; ++i) {
    const int64_t positions = policy.PromptPositions(2);
    const double seconds = answer + (positions > 0 ? prompt : 0);
    if (positions > 0) prompts += prompt;
    all += seconds;
    policy.Record(2, positions, seconds);
  }
  return prompts / all;
}

TEST(PassPolicyTest, PromptsGetHalfOfTheTimeAtMost) {
  for (bool in_ram : {false, true}) {
    for (double prompt : {1.0, 3.0, 56.0}) {
      EXPECT_NEAR(ShareOfPrompts(in_ram, 1, prompt), 0.5, 0.05) << prompt;
    }
    EXPECT_NEAR(ShareOfPrompts(in_ram, 1, 0.1), 0.1 / 1.1, 0.01);  // every pass
  }
}

TEST(PassPolicyTest, PiecesAreSmallOnlyWherePassesCostByThePosition) {
  EXPECT_EQ(PassPolicy(512, false).PromptPositions(1), 512);
  EXPECT_EQ(PassPolicy(512, true).PromptPositions(1), 64);
  EXPECT_EQ(PassPolicy(16, true).PromptPositions(1), 16);
}

TEST(PassPolicyTest, NothingIsOwedWhenNobodyWaits) {
  PassPolicy policy(512, true);
  EXPECT_EQ(policy.PromptPositions(0), 512);
  policy.Record(1, 64, 100);
  EXPECT_EQ(policy.PromptPositions(1), 0);
  EXPECT_EQ(policy.PromptPositions(0), 512);
  policy.Record(0, 512, 1);
  EXPECT_EQ(policy.PromptPositions(1), 64);
}

}  // namespace
}  // namespace deltafin
