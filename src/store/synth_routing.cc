#include "store/synth_routing.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace deltafin {
namespace {

constexpr int kBisections = 40;
constexpr int kIntegrationSteps = 400;
constexpr double kTail = 9;  // beyond this many standard deviations there is nothing

// Correlation of an expert's score between consecutive tokens, for a router that listens to the
// context with the share s: kLeast + kRange t / (t + kHalf), t = tan^2(s pi / 2). Fitted to nano's
// widths with 64 and 896 experts, to 0.03 for every share tried (docs/synth.md).
constexpr double kLeast = 0.05;
constexpr double kRange = 0.69;
constexpr double kHalf = 2.2;

// P(Z > z) of a standard normal Z.
double Above(double z) { return 0.5 * std::erfc(z / std::numbers::sqrt2); }

// Where the increasing function f reaches `target` between low and high.
template <class F>
double Solve(double low, double high, double target, F&& f) {
  for (int i = 0; i < kBisections; ++i) {
    const double middle = (low + high) / 2;
    (f(middle) < target ? low : high) = middle;
  }
  return (low + high) / 2;
}

// P(Y > z | X > z) for standard normal X and Y with that correlation and P(X > z) = picked: the
// part of the picks that two tokens share when scores are normal.
double Overlap(double picked, double correlation) {
  const double z = -Solve(-kTail, kTail, picked, [](double x) { return Above(-x); });
  const double spread = std::sqrt(1 - correlation * correlation);
  const double step = (kTail - z) / kIntegrationSteps;
  double sum = 0;
  for (int i = 0; i < kIntegrationSteps; ++i) {
    const double x = z + (i + 0.5) * step;
    sum += std::exp(-x * x / 2) * Above((z - correlation * x) / spread);
  }
  return sum * step * std::numbers::inv_sqrtpi / std::numbers::sqrt2 / picked;
}

}  // namespace

double ContextShare(double reuse, double picked) {
  DF_CHECK(picked > 0 && picked <= 1);
  if (picked == 1) return 0;  // everything is always picked
  const double correlation =
      Solve(kLeast, kLeast + kRange, reuse, [&](double middle) { return Overlap(picked, middle); });
  const double part = (correlation - kLeast) / kRange;  // t / (t + kHalf)
  return std::atan(std::sqrt(kHalf * part / (1 - part))) * 2 / std::numbers::pi;
}

double MaxReuse(double picked) { return picked == 1 ? 1 : Overlap(picked, kLeast + kRange); }

}  // namespace deltafin
