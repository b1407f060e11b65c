// Describes the computer for reports.
#pragma once

#include "deltafin/bench.h"

namespace deltafin {

BenchMachine DescribeMachine();

}  // namespace deltafin
