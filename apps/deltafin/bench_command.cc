// deltafin bench: what this machine reaches, next to its limits.
#include "bench_command.h"

#include <cstdio>
#include <iostream>

#include "deltafin/json.h"

namespace deltafin {
namespace {

Json OrNull(double value) { return value != 0 ? Json(value) : Json(nullptr); }
Json OrNull(const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); }

}  // namespace

void PrintBenchResult(const BenchResult* result) {
  if (result == nullptr) {
    std::printf("%-24s %-6s %-22s %9s %7s %11s %8s %9s  %s\n", "operator", "format", "shape",
                "positions", "threads", "us", "GB/s", "GFLOP/s", "of limit");
    return;
  }
  std::printf("%-24s %-6s %-22s %9lld %7d %11.1f %8.1f %9.1f  %3.0f %% of %.1f (%s)\n",
              result->op.c_str(), result->format.c_str(), result->shape.c_str(),
              static_cast<long long>(result->positions), result->threads, result->seconds * 1e6,
              result->gb_per_s, result->gflop_per_s, result->ratio * 100, result->limit_value,
              result->limit.c_str());
  std::fflush(stdout);
}

void PrintBenchTargets(const BenchReport& report) {
  std::printf("\n%s\n\n", report.machine.c_str());
  for (const BenchTarget& target : report.targets) {
    std::printf("%-6s %6.2f, target %.2f: %s\n", target.met() ? "met" : "MISSED", target.got,
                target.target, target.name.c_str());
  }
}

void PrintBenchJson(const BenchReport& report) {
  Json results = Json::array();
  for (const BenchResult& r : report.results) {
    results.push_back({{"op", r.op},
                       {"format", OrNull(r.format)},
                       {"shape", OrNull(r.shape)},
                       {"positions", OrNull(static_cast<double>(r.positions))},
                       {"threads", OrNull(static_cast<double>(r.threads))},
                       {"seconds", OrNull(r.seconds)},
                       {"gb_per_s", OrNull(r.gb_per_s)},
                       {"gflop_per_s", OrNull(r.gflop_per_s)},
                       {"limit", OrNull(r.limit)},
                       {"limit_value", OrNull(r.limit_value)},
                       {"ratio", OrNull(r.ratio)}});
  }
  Json targets = Json::array();
  for (const BenchTarget& t : report.targets) {
    targets.push_back({{"name", t.name}, {"target", t.target}, {"got", t.got}, {"met", t.met()}});
  }
  std::cout << Json{{"machine", report.machine}, {"results", results}, {"targets", targets}}.dump()
            << "\n";
}

void AddBenchCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand("bench", "Measure parts of the program on this machine");
  command->require_subcommand(1);
  AddKernelBench(*command, status);
}

}  // namespace deltafin
