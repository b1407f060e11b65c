#include "base/phase_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>

namespace deltafin {
namespace {

void Work() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
  while (std::chrono::steady_clock::now() < until) {
  }
}

EngineCounters Of(const PhaseClock& clock) {
  EngineCounters counters;
  clock.AddTo(counters);
  return counters;
}

// Lower bounds only: a busy machine makes everything longer.
TEST(PhaseClockTest, AnInnerPhaseSuspendsTheOuterOne) {
  PhaseClock clock;
  const auto start = std::chrono::steady_clock::now();
  {
    const PhaseScope pass(&clock, Phase::kOther);
    Work();
    {
      const PhaseScope attention(&clock, Phase::kKda);
      Work();
      const PhaseScope wait(&clock, Phase::kSpineWait);
      Work();
    }
    Work();
    clock.CountPass(7);
  }
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const EngineCounters counters = Of(clock);
  EXPECT_EQ(counters.passes, 1u);
  EXPECT_EQ(counters.positions, 7u);
  EXPECT_GE(counters.phase_seconds(Phase::kOther), 0.006);
  EXPECT_GE(counters.phase_seconds(Phase::kKda), 0.003);
  EXPECT_GE(counters.phase_seconds(Phase::kSpineWait), 0.003);
  EXPECT_EQ(counters.phase_seconds(Phase::kMla), 0);
  EXPECT_LE(counters.pass_seconds(), wall);  // nothing counts twice
  Work();                                    // outside of all phases
  EXPECT_EQ(Of(clock).pass_seconds(), counters.pass_seconds());
}

TEST(PhaseClockTest, AnExceptionLeavesThePhase) {
  PhaseClock clock;
  try {
    const PhaseScope pass(&clock, Phase::kOther);
    const PhaseScope inner(&clock, Phase::kHead);
    throw 1;
  } catch (int) {
  }
  const double before = Of(clock).pass_seconds();
  Work();
  EXPECT_EQ(Of(clock).pass_seconds(), before);
}

TEST(PhaseClockTest, NoClockNoWork) { const PhaseScope scope(nullptr, Phase::kKda); }

TEST(PhaseClockTest, DifferencesAndNames) {
  EngineCounters a;
  EngineCounters b;
  b.passes = 5;
  a.passes = 3;
  b.seconds[2] = 7;
  a.seconds[2] = 4;
  b.expert_bytes = 10;
  b.head_bytes = 4;
  a.head_bytes = 1;
  b.disk_seconds = 2;
  const EngineCounters d = b - a;
  EXPECT_EQ(d.passes, 2u);
  EXPECT_EQ(d.pass_seconds(), 3);
  EXPECT_EQ(d.bytes_read(), 13u);
  EXPECT_EQ(d.disk_seconds, 2);
  std::set<std::string> names;
  for (size_t i = 0; i < kNumPhases; ++i) names.insert(PhaseName(static_cast<Phase>(i)));
  EXPECT_EQ(names.size(), kNumPhases);
  EXPECT_FALSE(names.contains(""));
}

}  // namespace
}  // namespace deltafin
