#include "store/prefetch_gauge.h"

#include <gtest/gtest.h>

namespace deltafin {
namespace {

// Outcomes until it switches off, at most 1000.
int Endures(PrefetchGauge& gauge, const PrefetchOutcome& outcome, double victim_use) {
  int count = 0;
  while (gauge.on() && count < 1000) {
    gauge.OnOutcome(outcome, victim_use);
    ++count;
  }
  return count;
}

int Rests(PrefetchGauge& gauge) {
  int count = 0;
  for (; !gauge.on(); ++count) gauge.OnNoHint();
  return count;
}

TEST(PrefetchGauge, StaysOnWhereItPays) {
  PrefetchGauge gauge;
  EXPECT_EQ(Endures(gauge, {.right_ready = 4, .wrong_done = 4, .replaced = 4}, 0.3), 1000);
  EXPECT_EQ(Endures(gauge, {.right_late = 1, .wrong_late = 1}, 0), 1000);
}

TEST(PrefetchGauge, GuessesThatCostNothingMayStay) {
  PrefetchGauge gauge;
  EXPECT_EQ(Endures(gauge, {}, 1), 1000);                     // all were in RAM
  EXPECT_EQ(Endures(gauge, {.wrong_dropped = 16}, 1), 1000);  // the disk was never free
  EXPECT_EQ(Endures(gauge, {.wrong_done = 3}, 0), 1000);      // it was idle, the slots unused
}

TEST(PrefetchGauge, GivesUpAfterATrialAndTriesAgainLessAndLessOften) {
  PrefetchGauge gauge;
  const PrefetchOutcome bad{.right_ready = 1, .wrong_done = 2, .wrong_late = 3, .replaced = 5};
  int last_rest = 0;
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(Endures(gauge, bad, 0.2), 8);
    const int rest = Rests(gauge);
    EXPECT_EQ(rest, last_rest == 0 ? 64 : std::min(2 * last_rest, 1024));
    last_rest = rest;
  }
  EXPECT_EQ(Endures(gauge, {.right_ready = 1}, 0.2), 1000);  // it pays now
  EXPECT_GT(Endures(gauge, bad, 0.2), 0);
  EXPECT_EQ(Rests(gauge), 64);  // and is trusted again
}

// The break-even recall for reads that are all under way when the picks are known, with slots that
// nothing would use: one half.
TEST(PrefetchGauge, ThresholdFollowsFromTheCosts) {
  PrefetchGauge good;
  EXPECT_EQ(Endures(good, {.right_late = 9, .wrong_late = 7}, 0), 1000);
  PrefetchGauge bad;
  EXPECT_LT(Endures(bad, {.right_late = 7, .wrong_late = 9}, 0), 10);
  // Reads that end in time: even one right in five pays while a slot's content is used in every
  // fifth pass only.
  PrefetchGauge idle_disk;
  EXPECT_EQ(Endures(idle_disk, {.right_ready = 4, .wrong_done = 16, .replaced = 16}, 0.2), 1000);
  PrefetchGauge busy_slots;
  EXPECT_LT(Endures(busy_slots, {.right_ready = 4, .wrong_done = 16, .replaced = 16}, 0.5), 10);
}

}  // namespace
}  // namespace deltafin
