// What the reports of several benches share.
#pragma once

#include "deltafin/bench.h"

namespace deltafin {

// Of the disk's best rate, when the spans of a layer are demanded at once.
inline constexpr double kDemandTarget = 0.95;

BenchMachine DescribeMachine();

}  // namespace deltafin
