// The elementary functions against double precision, over all magnitudes. The bounds are the errors
// over every 61st float (docs/numerics.md), rounded up; the tests take every 509th.
#include "device/cpu/plain_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

namespace deltafin {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The distance between floats at `exact`.
double UlpAt(double exact) {
  const double magnitude = std::fabs(exact);
  if (magnitude < 0x1p-126) return 0x1p-149;
  return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

// The largest error in [low, high] over every 509th float, about four million for the whole line.
double WorstUlps(float low, float high, float (*function)(float), double (*exact)(double)) {
  double worst = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 509) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    const double e = exact(static_cast<double>(x));
    worst = std::max(worst, std::fabs(static_cast<double>(function(x)) - e) / UlpAt(e));
  }
  std::printf("  [%g, %g]: %.3f ulp\n", static_cast<double>(low), static_cast<double>(high), worst);
  return worst;
}

// No result below the one before, over neighbouring floats around `x`.
void ExpectMonotoneAround(float x, float (*function)(float)) {
  float at = x;
  for (int i = 0; i < 1000; ++i) at = std::nextafter(at, -kInf);
  float before = function(at);
  for (int i = 0; i < 2000; ++i) {
    at = std::nextafter(at, kInf);
    ASSERT_GE(function(at), before) << "at " << at;
    before = function(at);
  }
}

double ExactSigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double ExactSilu(double x) { return x / (1 + std::exp(-x)); }

TEST(PlainMathTest, ExpIsWithinOneUlp) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(WorstUlps(-87.33f, 88.72f, plain::Exp, exact), 1.01);
  EXPECT_LE(WorstUlps(-104.0f, -87.33f, plain::Exp, exact), 1.01);  // subnormal results
}

TEST(PlainMathTest, ExpAtItsEdges) {
  EXPECT_EQ(plain::Exp(0.0f), 1.0f);
  EXPECT_EQ(plain::Exp(-0.0f), 1.0f);
  EXPECT_EQ(plain::Exp(-kInf), 0.0f);
  EXPECT_EQ(plain::Exp(-104.0f), 0.0f);
  EXPECT_EQ(plain::Exp(-103.0f), 0x1p-149f);
  EXPECT_EQ(plain::Exp(kInf), kInf);
  EXPECT_EQ(plain::Exp(88.73f), kInf);
  EXPECT_LT(plain::Exp(88.7228f), kInf);
  EXPECT_GT(plain::Exp(88.7228f), 3.4e38f);
  EXPECT_TRUE(std::isnan(plain::Exp(std::numeric_limits<float>::quiet_NaN())));
  for (float edge : {-104.0f, -87.33654f, 0.0f, 88.722f}) ExpectMonotoneAround(edge, plain::Exp);
}

TEST(PlainMathTest, SigmoidIsWithinThreeUlps) {
  EXPECT_LE(WorstUlps(-88.7f, 104.0f, plain::Sigmoid, ExactSigmoid), 2.4);
}

TEST(PlainMathTest, SigmoidAtItsEdges) {
  EXPECT_EQ(plain::Sigmoid(0.0f), 0.5f);
  EXPECT_EQ(plain::Sigmoid(kInf), 1.0f);
  EXPECT_EQ(plain::Sigmoid(-kInf), 0.0f);
  EXPECT_EQ(plain::Sigmoid(-89.0f), 0.0f);  // the true 2.2e-39 is lost: exp(89) is infinite
  EXPECT_EQ(plain::Sigmoid(40.0f), 1.0f);
  for (float edge : {-88.7f, 17.0f}) ExpectMonotoneAround(edge, plain::Sigmoid);
}

TEST(PlainMathTest, SiluIsWithinThreeUlps) {
  EXPECT_LE(WorstUlps(-87.0f, 104.0f, plain::Silu, ExactSilu), 2.4);
  EXPECT_EQ(plain::Silu(0.0f), 0.0f);
  EXPECT_EQ(plain::Silu(1000.0f), 1000.0f);
  EXPECT_EQ(plain::Silu(-1000.0f), 0.0f);
}

TEST(PlainMathTest, TanhIsWithinTwoUlps) {
  EXPECT_LE(WorstUlps(-200.0f, 200.0f, plain::Tanh, [](double x) { return std::tanh(x); }), 1.35);
}

TEST(PlainMathTest, TanhAtItsEdges) {
  EXPECT_EQ(plain::Tanh(0.0f), 0.0f);
  EXPECT_EQ(plain::Tanh(kInf), 1.0f);
  EXPECT_EQ(plain::Tanh(-kInf), -1.0f);
  EXPECT_EQ(plain::Tanh(20.0f), 1.0f);
  EXPECT_EQ(plain::Tanh(1e-30f), 1e-30f);
  EXPECT_EQ(plain::Tanh(0x1p-149f), 0x1p-149f);
  for (float x = 0.001f; x < 20.0f; x *= 1.01f) EXPECT_EQ(plain::Tanh(-x), -plain::Tanh(x)) << x;
  // The two formulas meet without a step down of more than their errors.
  const float below = plain::Tanh(std::nextafter(0.625f, 0.0f));
  EXPECT_GE(plain::Tanh(0.625f), below - 2 * 0x1p-24f);
  ExpectMonotoneAround(9.0f, plain::Tanh);
}

TEST(PlainMathTest, SituBoundsItsFactors) {
  const SituParams k3{4.0f, 25.0f};
  EXPECT_EQ(plain::Situ(1000.0f, 1000.0f, k3), 100.0f);
  EXPECT_EQ(plain::Situ(1000.0f, -1000.0f, k3), -100.0f);
  EXPECT_EQ(plain::Situ(-1000.0f, 1000.0f, k3), 0.0f);
  EXPECT_EQ(plain::Situ(1000.0f, 1000.0f, {1.0f, 0.0f}), 1000.0f);  // no tanh on `up`
}

// Lane 0 loses the one added to 2^24; in lane 1 it survives.
TEST(PlainMathTest, DotKeepsSixteenLanes) {
  float x[48] = {};
  float ones[48];
  std::fill_n(ones, 48, 1.0f);
  x[0] = 0x1p24f, x[16] = 1.0f, x[32] = -0x1p24f;
  EXPECT_EQ(plain::Dot(48, x, ones), 0.0f);
  x[16] = 0.0f, x[17] = 1.0f;
  EXPECT_EQ(plain::Dot(48, x, ones), 1.0f);
}

// Lane 8 joins lane 0 before lane 4 does, lane 12 joins lane 4, and so on.
TEST(PlainMathTest, LanesAreAddedAsATree) {
  const auto sum = [](std::initializer_list<std::pair<int, float>> lanes) {
    float a[plain::kLanes] = {};
    for (const auto& [lane, value] : lanes) a[lane] = value;
    return plain::Sum16(a);
  };
  EXPECT_EQ(sum({{0, 0x1p24f}, {8, 1.0f}, {4, -0x1p24f}}), 0.0f);
  EXPECT_EQ(sum({{0, 0x1p24f}, {12, 1.0f}, {4, -0x1p24f}}), 1.0f);
  EXPECT_EQ(sum({{0, 0x1p24f}, {4, 1.0f}, {2, -0x1p24f}}), 0.0f);
  EXPECT_EQ(sum({{0, 0x1p24f}, {6, 1.0f}, {2, -0x1p24f}}), 1.0f);
  EXPECT_EQ(sum({{0, 0x1p24f}, {2, 1.0f}, {1, -0x1p24f}}), 0.0f);
  EXPECT_EQ(sum({{0, 0x1p24f}, {3, 1.0f}, {1, -0x1p24f}}), 1.0f);
}

// A product that underflows leaves -0 in its lane; the padding makes it +0 where there is some.
TEST(PlainMathTest, PaddingIsPartOfTheSum) {
  std::vector<float> w(16, -0x1p-100f), x(16, 0x1p-100f);
  EXPECT_TRUE(std::signbit(plain::Dot(16, w.data(), x.data())));
  w.push_back(-0x1p-100f), x.push_back(0x1p-100f);
  EXPECT_FALSE(std::signbit(plain::Dot(17, w.data(), x.data())));
}

}  // namespace
}  // namespace deltafin
