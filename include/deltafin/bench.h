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
  std::optional<double> tokens_per_s;
  std::optional<double> bytes_per_token;  // read from files
  std::string bound;                      // what the limit is: "read bandwidth", "FMA peak"
  std::optional<double> limit;            // of gb_per_s or gflop_per_s, whichever binds
  std::optional<double> ratio;            // to the limit
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
  std::vector<std::string> also_dirs = {};  // as EngineOptions
  double seconds = 20;                      // about; every way is measured at least once
  std::function<void(const std::string&)> on_progress = nullptr;  // hears what is measured next
};

// How fast the disk of a model gives random spans of its shards (the size of an expert), past the
// page cache, in every way of reading: plain loops of pread, and the read queue fed steadily and
// with the 16 spans of a layer at once. Throws Error when the model cannot be opened or nothing of
// it is on the disk.
BenchReport BenchDisk(const DiskBenchOptions& options);

struct DecodeBenchOptions {
  std::string model_dir;  // with Kimi K3's widths (deltafin synth); a few layers will do
  std::vector<std::string> also_dirs = {};  // as EngineOptions
  SpineFormat spine = SpineFormat::kBf16;
  int threads = 0;  // 0: all processors
  // That are measured at each budget, more where that takes no 5 seconds; at most 100.
  int tokens = 6;
  int budgets = 5;  // from the least that the model runs in to all that it can use; at least 2
  std::vector<int> only = {};  // of these budgets, counted from 1; empty: all
  bool cold = true;
  bool warm = true;
  std::function<void(const BenchResult&)> on_result = nullptr;
};

// How much of what the machine gives decoding uses, token by token, under several RAM budgets: cold
// (reads past the page cache) and warm (everything in the page cache). The ratio of a line is
// max(disk time, memory time, compute time) / wall time: bytes read over the rate that the same
// reads reach by themselves, weights over the read bandwidth, weights over the rate of the kernels
// by themselves, all measured just before and after the tokens. What the reads take of the
// processors (warm: the copy out of the page cache) is told, but in no ratio. Takes 2.5 GiB more
// than the model's budget. Throws Error.
BenchReport BenchDecode(const DecodeBenchOptions& options);

struct BatchBenchOptions {
  EngineOptions engine;  // sessions and context are set as needed
  int64_t tokens = 16;   // passes of each measurement, fewer where they take too long
  double seconds = 60;   // about; at least one pass of each number of sequences is measured
  std::function<void(const BenchResult&)> on_result = nullptr;
  std::function<void(const std::string&)> on_progress = nullptr;  // hears each measurement
};

// The time of a pass in which 1, 2, 4 and 8 independent sequences get a token each, in turns. What
// they gain depends on what a pass reads once for all of them: the spine, where it is streamed.
// Throws Error.
BenchReport BenchBatch(const BatchBenchOptions& options);

struct SpecBenchOptions {
  EngineOptions engine;  // context_tokens and max_draft_tokens are set as needed
  int64_t tokens = 128;  // decoded in each measurement, fewer where it takes too long; at least 16
  double seconds = 120;  // about; at least one pass of each text is measured, with and without
  std::function<void(const BenchResult&)> on_result = nullptr;
  std::function<void(const std::string&)> on_progress = nullptr;  // hears each measurement
};

// What guesses at the next tokens gain on a text that repeats itself, and lose on one that does
// not: the same tokens (given, not chosen by the model) with `auto` and without, in turns. Throws
// Error.
BenchReport BenchSpec(const SpecBenchOptions& options);

struct PrefillBenchOptions {
  EngineOptions engine;         // context_tokens is set as needed
  int64_t tokens = 0;           // of the prompt; 0: the largest pass that the plan has room for
  std::vector<int64_t> chunks;  // positions of a pass; empty: 1, 8, 64, 128, ... and the largest
  std::function<void(const BenchResult&)> on_result = nullptr;
};

// Random tokens in passes of several sizes: tokens per second, and the bytes that were read next to
// those that the passes need, which is the part of the spine that is not in RAM once, and each
// expert that some position picked once, for each pass. Experts that were in RAM already make the
// ratio larger than 1. Small passes read the beginning of the prompt
// only. Throws Error.
BenchReport BenchPrefill(const PrefillBenchOptions& options);

struct ContextBenchOptions {
  EngineOptions engine;           // context_tokens is set as needed
  std::vector<int64_t> contexts;  // ascending; empty: 1,024, 32,768 and 131,072
  int64_t tokens = 8;             // decoded at each
  std::function<void(const BenchResult&)> on_result = nullptr;
};

// The time of a token, and of a KDA and an MLA layer in it, after contexts of several lengths, and
// the memory that they take. Long contexts are short ones repeated in the latent cache: what is in
// it does not change the time. Throws Error.
BenchReport BenchContext(const ContextBenchOptions& options);

}  // namespace deltafin
