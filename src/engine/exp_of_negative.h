// e^x for the weights of tokens. Internal to engine/.
#pragma once

#include <span>

namespace deltafin {

// e^x for x <= 0 as a fixed sequence of correctly rounded operations, so that a seed means the same
// text with every C library and on every processor. At most 1 ulp off; 0 below -708.
double ExpOfNegative(double x);

// The same for many, in place, with the same bits: 4,608 of them in 17 us with AVX2, where calls of
// the C library's fma took 198 (best of 300, Zen 5, 2026-11-30).
void ExpOfNegatives(std::span<double> values);

}  // namespace deltafin
