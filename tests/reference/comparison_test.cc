#include "reference/comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deltafin::reference {
namespace {

const std::vector<Vec> kWant = {{1, 2}, {3, 4}, {5, 6}};

TEST(CompareLogits, AgreesWithinTheTolerance) {
  const auto result = CompareLogits({{1, 2}, {3, 4.001F}, {5, 6}}, kWant, {1, 1, 1}, 0.01);
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.positions, 3);
  EXPECT_EQ(result.stopped_at, -1);
  EXPECT_NEAR(result.max_abs_diff, 0.001, 1e-6);
}

TEST(CompareLogits, DifferenceWithoutNearTieFails) {
  const auto result = CompareLogits({{1, 2}, {3, 5}, {5, 6}}, kWant, {1, 1, 1e-9}, 0.01);
  EXPECT_NE(result.failure, "");
}

// A near tie of an earlier position whose logits agree explains nothing.
TEST(CompareLogits, OnlyTheDeviatingPositionsOwnNearTieExplainsIt) {
  EXPECT_NE(CompareLogits({{1, 2}, {3, 5}, {5, 6}}, kWant, {1e-9, 1, 1}, 0.01).failure, "");
  const auto result = CompareLogits({{1, 2}, {3, 5}, {9, 9}}, kWant, {1, 1e-9, 1}, 0.01);
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.positions, 1);
  EXPECT_EQ(result.stopped_at, 1);
}

TEST(CompareLogits, NanAndMissingPositionsFail) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(CompareLogits({{1, nan}, {3, 4}, {5, 6}}, kWant, {1e-9, 1, 1}, 0.01).failure, "");
  EXPECT_NE(CompareLogits({{1, 2}, {3, 4}}, kWant, {1, 1, 1}, 0.01).failure, "");
  EXPECT_NE(CompareLogits({{1, 2}, {3}, {5, 6}}, kWant, {1, 1, 1}, 0.01).failure, "");
}

TEST(DecidedIds, StopsAtCloseChoicesAndRouterNearTies) {
  EXPECT_EQ(DecidedIds({1, 1, 1}, {1, 1, 1}, 0.1), 3);
  EXPECT_EQ(DecidedIds({1, 0.05, 1}, {1, 1, 1}, 0.1), 1);
  EXPECT_EQ(DecidedIds({1, 1, 1}, {1, 1, 1e-6}, 0.1), 2);
}

TEST(CompareRouting, SetsByPositionThenLayer) {
  const std::vector<std::vector<Routing>> want = {
      {}, {{{3, 1}, {}, 1}, {{2, 0}, {}, 1e-7}}, {{{0, 1}, {}, 1}, {{1, 2}, {}, 1}}};
  auto result = CompareRouting({{}, {{1, 3}, {0, 2}}, {{0, 1}, {2, 1}}}, want);
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.equal, 4);
  result = CompareRouting({{}, {{1, 3}, {0, 3}}, {{0, 1}, {0, 3}}}, want);  // the near tie
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.stopped_at, 1);
  EXPECT_EQ(result.equal, 2);
  EXPECT_NE(CompareRouting({{}, {{1, 3}, {0, 3}}, {{0, 2}, {0, 3}}}, want).failure, "");
  EXPECT_NE(CompareRouting({{}, {{1, 3}, {0, 2}}}, want).failure, "");  // layer missing
  EXPECT_NE(CompareRouting({{}, {{1, 3}, {0}}, {{0, 1}, {2, 1}}}, want).failure, "");
}

TEST(CompareTrace, ReportsEachTensor) {
  const NamedTensors gold = {{"a", {1, 1}}, {"b", {3, 4}}, {"unused", {1}}};
  const auto differences = CompareTrace({{"a", {1, 1}}, {"b", {3, 4.5F}}}, gold);
  ASSERT_EQ(differences.size(), 2U);
  EXPECT_EQ(differences[0].max_abs, 0);
  EXPECT_EQ(differences[1].name, "b");
  EXPECT_NEAR(differences[1].relative(), 0.5 / std::sqrt(12.5), 1e-12);
  EXPECT_THROW(CompareTrace({{"c", {1}}}, gold), std::runtime_error);
  EXPECT_THROW(CompareTrace({{"a", {1}}}, gold), std::runtime_error);
}

}  // namespace
}  // namespace deltafin::reference
