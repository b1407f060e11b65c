// What the benchmarks of `deltafin bench` share.
#pragma once

#include "command_line.h"
#include "deltafin/bench.h"

namespace deltafin {

// Each adds one benchmark to `deltafin bench`.
void AddKernelBench(CLI::App& bench, int* status);

// One line of the table for people; call with null for the heading.
void PrintBenchResult(const BenchResult* result);
// The machine and the targets, below the table.
void PrintBenchTargets(const BenchReport& report);
// One object: machine, results, targets. Figures that do not apply are null.
void PrintBenchJson(const BenchReport& report);

}  // namespace deltafin
