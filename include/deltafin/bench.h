// What `deltafin bench` measures. Each function runs one group of measurements.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deltafin/engine.h"

namespace deltafin {

// The computer, for people who compare reports.
struct BenchMachine {
  std::string cpu;  // the model's name
  std::string architecture;
  int processors = 0;  // that this process may use
  uint64_t memory_bytes = 0;
  std::string memory_limited_by;
  std::string kernel;
};

// One line. What does not apply is empty.
struct BenchResult {
  std::string op;      // "disk demand"
  std::string format;  // "threads direct", "mxfp4"
  std::string shape;   // "16 x 17547264"
  std::optional<int64_t> positions;
  std::optional<int> threads;
  double seconds = 0;  // of one repetition
  std::optional<double> gb_per_s;
  std::optional<double> gflop_per_s;
  std::string bound;            // what the limit is: "read bandwidth", "FMA peak"
  std::optional<double> limit;  // of gb_per_s or gflop_per_s, whichever binds
  std::optional<double> ratio;  // to the limit
};

// What the project promises, and what it was here.
struct BenchTarget {
  std::string name;
  double target = 0;
  double got = 0;
  bool met = false;
};

struct BenchReport {
  BenchMachine machine;
  std::vector<BenchResult> results;
  std::vector<BenchTarget> targets;
  std::vector<std::string> notes;  // what could not be measured, and why
};

struct KernelBenchOptions {
  std::string cpu_isa;        // as EngineOptions
  int threads = 0;            // 0: 1, 2, 4, ... and all processors
  bool targets_only = false;  // only what the targets need
  std::string model_dir;      // for the comparison of whole forward passes; "": left out
  std::function<void(const BenchResult&)> on_result = nullptr;  // hears every result as it comes
};

// The operators of the CPU at the real sizes of Kimi K3, on weights that are in no cache. Takes
// about 1.5 GB of memory. Throws Error.
BenchReport BenchKernels(const KernelBenchOptions& options);

struct DiskBenchOptions {
  std::string model_dir;
  double seconds = 20;  // about; every way is measured at least once
  std::function<void(const std::string&)> on_progress = nullptr;  // hears what is measured next
};

// How fast the disk of a model gives random spans of its shards (the size of an expert), past the
// page cache, in every way of reading: plain loops of pread, and the read queue fed steadily and
// with the 16 spans of a layer at once. Throws Error when the model cannot be opened or nothing of
// it is on the disk.
BenchReport BenchDisk(const DiskBenchOptions& options);

struct BatchBenchOptions {
  EngineOptions engine;  // sessions and context are set as needed
  int64_t tokens = 16;   // passes of each measurement
  double seconds = 60;   // about; at least three rounds are measured
  std::function<void(const BenchResult&)> on_result = nullptr;
};

// The time of a pass in which 1, 2, 4 and 8 independent sequences get a token each, in turns. What
// they gain depends on what a pass reads once for all of them: the spine, where it is streamed.
// Throws Error.
BenchReport BenchBatch(const BatchBenchOptions& options);

}  // namespace deltafin
