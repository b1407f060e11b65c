// Benchmarks of the program: what was measured, next to the limit of the machine measured in the
// same run, and the targets that it is held to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace deltafin {

// One measurement. A figure that does not apply is 0, a name that does not is empty.
struct BenchResult {
  std::string op;
  std::string format;
  std::string shape;
  int64_t positions = 0;
  int threads = 0;
  double seconds = 0;
  double gb_per_s = 0;
  double gflop_per_s = 0;
  std::string limit;       // what bounds it: "read bandwidth", "FMA peak", ...
  double limit_value = 0;  // in the unit of the figure that it bounds
  double ratio = 0;        // of that figure to the limit, the median of interleaved rounds
};

struct BenchTarget {
  std::string name;
  double target = 0;
  double got = 0;
  bool met() const { return got >= target; }
};

struct BenchReport {
  std::string machine;
  std::vector<BenchResult> results;
  std::vector<BenchTarget> targets;
};

struct KernelBenchOptions {
  std::string cpu_isa;        // as EngineOptions
  bool targets_only = false;  // only what the targets need
  std::string model_dir;      // for the comparison of whole forward passes; "": left out
};

// The operators of the CPU at the real sizes of Kimi K3, on weights that are in no cache. Calls
// `on_result` for every result as it comes. Takes about 1.5 GB of memory. Throws Error.
BenchReport BenchKernels(const KernelBenchOptions& options,
                         const std::function<void(const BenchResult&)>& on_result);

}  // namespace deltafin
