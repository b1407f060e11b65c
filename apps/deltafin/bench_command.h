// deltafin bench: one file for each group of measurements, and what they share.
#pragma once

#include <string>
#include <utility>

#include "command_line.h"
#include "deltafin/bench.h"

namespace deltafin {

// Each adds one subcommand of bench.
void AddBenchBatchCommand(CLI::App& bench, int* status);
void AddBenchContextCommand(CLI::App& bench, int* status);
void AddBenchDecodeCommand(CLI::App& bench, int* status);
void AddBenchDiskCommand(CLI::App& bench, int* status);
void AddBenchKernelsCommand(CLI::App& bench, int* status);
void AddBenchPrefillCommand(CLI::App& bench, int* status);
void AddBenchSpecCommand(CLI::App& bench, int* status);

// A table for people, or one JSON object: machine, results, targets, notes; what does not apply is
// null. Returns the exit status.
int PrintBenchReport(const BenchReport& report, bool json);

// The same in parts, for a benchmark that shows its results as they come: heading, lines, and then
// what is left of the report (the machine, targets, notes; with `json` all of it).
void PrintBenchHeading();
void PrintBenchResult(const BenchResult& result);
int FinishBenchReport(const BenchReport& report, bool json);

// What was measured, in a line of its own on stderr.
void PrintBenchProgress(const std::string& what);

// A benchmark whose results are shown as they come (with `json` at its end). The heading waits for
// the first one: an error before that stands alone. Returns the exit status.
template <class Options>
int RunBench(Options options, bool json, BenchReport (*bench)(const Options&)) {
  if (!json) {
    options.on_result = [has_heading = false](const BenchResult& result) mutable {
      if (!std::exchange(has_heading, true)) PrintBenchHeading();
      PrintBenchResult(result);
    };
    if constexpr (requires { options.on_progress; }) options.on_progress = &PrintBenchProgress;
  }
  return FinishBenchReport(bench(options), json);
}

}  // namespace deltafin
