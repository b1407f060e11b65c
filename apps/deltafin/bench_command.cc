// deltafin bench: what this computer gives, and how much of it is used.
#include "bench_command.h"

#include <cstdio>
#include <iostream>

#include "deltafin/json.h"

namespace deltafin {
namespace {

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json ToJson(const BenchReport& report) {
  const BenchMachine& m = report.machine;
  Json results = Json::array();
  for (const BenchResult& r : report.results) {
    results.push_back({{"op", r.op},
                       {"format", r.format},
                       {"shape", r.shape},
                       {"positions", OrNull(r.positions)},
                       {"threads", OrNull(r.threads)},
                       {"seconds", r.seconds},
                       {"gb_per_s", OrNull(r.gb_per_s)},
                       {"gflop_per_s", OrNull(r.gflop_per_s)},
                       {"tokens_per_s", OrNull(r.tokens_per_s)},
                       {"bytes_per_token", OrNull(r.bytes_per_token)},
                       {"bound", r.bound.empty() ? Json() : Json(r.bound)},
                       {"limit", OrNull(r.limit)},
                       {"ratio", OrNull(r.ratio)}});
  }
  Json targets = Json::array();
  for (const BenchTarget& t : report.targets) {
    targets.push_back({{"name", t.name}, {"target", t.target}, {"got", t.got}, {"met", t.met}});
  }
  return {{"machine",
           {{"cpu", m.cpu},
            {"architecture", m.architecture},
            {"processors", m.processors},
            {"memory_bytes", m.memory_bytes},
            {"memory_limited_by", m.memory_limited_by},
            {"kernel", m.kernel}}},
          {"results", results},
          {"targets", targets},
          {"notes", report.notes}};
}

// A number in its column, or "-".
void PrintNumber(const std::optional<double>& value, int width, int digits) {
  if (value) {
    std::printf(" %*.*f", width, digits, *value);
  } else {
    std::printf(" %*s", width, "-");
  }
}

void PrintWhole(const std::optional<int64_t>& value, int width) {
  std::printf(" %*s", width, value ? std::to_string(*value).c_str() : "-");
}

void PrintSummary(const BenchReport& report) {
  const BenchMachine& m = report.machine;
  std::printf("\n%s (%s), %d processors, %.1f GB of memory (%s), kernel %s\n\n", m.cpu.c_str(),
              m.architecture.c_str(), m.processors, static_cast<double>(m.memory_bytes) / 1e9,
              m.memory_limited_by.c_str(), m.kernel.c_str());
  for (const BenchTarget& t : report.targets) {
    std::printf("%s: %.3f, expected at least %.3f: %s\n", t.name.c_str(), t.got, t.target,
                t.met ? "met" : "NOT MET");
  }
  for (const std::string& note : report.notes) std::printf("note: %s\n", note.c_str());
}

}  // namespace

void PrintBenchHeading() {
  std::printf("%-24s %-14s %-22s %9s %7s %10s %8s %8s %8s %6s\n", "op", "format", "shape",
              "positions", "threads", "seconds", "GB/s", "GFLOP/s", "limit", "ratio");
}

void PrintBenchResult(const BenchResult& r) {
  std::printf("%-24s %-14s %-22s", r.op.c_str(), r.format.c_str(), r.shape.c_str());
  PrintWhole(r.positions, 9);
  PrintWhole(r.threads, 7);
  PrintNumber(r.seconds, 10, 6);
  PrintNumber(r.gb_per_s, 8, 2);
  PrintNumber(r.gflop_per_s, 8, 1);
  PrintNumber(r.limit, 8, 2);
  PrintNumber(r.ratio, 6, 2);
  std::printf("%s%s", r.bound.empty() ? "" : "  of ", r.bound.c_str());
  if (r.tokens_per_s) std::printf("  %.2f tokens/s", *r.tokens_per_s);
  if (r.bytes_per_token) std::printf("  %.1f MB read per token", *r.bytes_per_token / 1e6);
  std::printf("\n");
  std::fflush(stdout);
}

void PrintBenchProgress(const std::string& what) { std::fprintf(stderr, "%s\n", what.c_str()); }

int PrintBenchReport(const BenchReport& report, bool json) {
  if (json) {
    std::cout << DumpJson(ToJson(report)) << std::endl;
    return 0;
  }
  PrintBenchHeading();
  for (const BenchResult& result : report.results) PrintBenchResult(result);
  PrintSummary(report);
  return 0;
}

int FinishBenchReport(const BenchReport& report, bool json) {
  if (json) return PrintBenchReport(report, true);
  PrintSummary(report);
  return 0;
}

void AddBenchCommand(CLI::App& app, int* status) {
  CLI::App* bench = app.add_subcommand("bench", "Measure what this computer gives");
  bench->require_subcommand(1);
  AddBenchBatchCommand(*bench, status);
  AddBenchContextCommand(*bench, status);
  AddBenchDecodeCommand(*bench, status);
  AddBenchDiskCommand(*bench, status);
  AddBenchKernelsCommand(*bench, status);
  AddBenchPrefillCommand(*bench, status);
  AddBenchSpecCommand(*bench, status);
}

}  // namespace deltafin
