#include "engine/exp_of_negative.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace deltafin {
namespace {

constexpr double kLowest = -708;  // e^-708 is the last normal power

// Without calls and branches, so that a compiler makes vectors of it.
[[gnu::always_inline]] inline double Exp(double x) {
  const double bounded = x >= kLowest ? x : kLowest;
  // Adding and taking away 1.5 * 2^52 rounds to a whole number, half to even, and leaves it in the
  // last bits of the sum.
  constexpr double kToWhole = 0x1.8p52;
  const double sum = bounded * 0x1.71547652b82fep+0 + kToWhole;
  const double n = sum - kToWhole;
  double r = std::fma(n, -0x1.62e42fefa39efp-1, bounded);  // ln 2 in two parts
  r = std::fma(n, -0x1.abc9e3b39803fp-56, r);              // |r| <= 0.347
  // Taylor: the first term left out is below 2^-57 of the result.
  double y = 1.0 / 6227020800.0;
  y = std::fma(y, r, 1.0 / 479001600);
  y = std::fma(y, r, 1.0 / 39916800);
  y = std::fma(y, r, 1.0 / 3628800);
  y = std::fma(y, r, 1.0 / 362880);
  y = std::fma(y, r, 1.0 / 40320);
  y = std::fma(y, r, 1.0 / 5040);
  y = std::fma(y, r, 1.0 / 720);
  y = std::fma(y, r, 1.0 / 120);
  y = std::fma(y, r, 1.0 / 24);
  y = std::fma(y, r, 1.0 / 6);
  y = std::fma(y, r, 1.0 / 2);
  y = std::fma(y, r, 1.0);
  y = std::fma(y, r, 1.0);
  // Times 2^n, which is exact: the result is a normal number.
  constexpr uint64_t kOne = uint64_t{1023} << 52;  // the exponent of 1
  const auto power = std::bit_cast<double>((std::bit_cast<uint64_t>(sum) << 52) + kOne);
  return x >= kLowest ? y * power : 0;
}

[[gnu::always_inline]] inline void ExpAll(double* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = Exp(values[i]);
}

#if defined(__x86_64__)
// The operations are the same: fused ones are instructions here, not calls of the library.
__attribute__((target("avx2,fma"))) void ExpAllAvx2(double* values, size_t count) {
  ExpAll(values, count);
}
#endif

}  // namespace

double ExpOfNegative(double x) { return Exp(x); }

void ExpOfNegatives(std::span<double> values) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return ExpAllAvx2(values.data(), values.size());
  }
#endif
  ExpAll(values.data(), values.size());
}

}  // namespace deltafin
