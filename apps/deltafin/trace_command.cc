// deltafin trace: what a record of the router's picks says.
#include <cstdio>
#include <fstream>
#include <iostream>

#include "command_line.h"
#include "deltafin/json.h"
#include "deltafin/trace_analysis.h"
#include "flag_checks.h"

namespace deltafin {
namespace {

struct TraceOptions {
  std::string file;
  std::string svg;
  std::vector<int64_t> slots;
  int64_t experts = 0;
  int64_t top_k = 0;
  bool binary = false;
  bool simulate = false;
  bool json = false;
};

void PrintJson(const TraceReport& report, const TraceSimulation& simulation) {
  Json layers = Json::array();
  for (const LayerTraceReport& layer : report.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"picks", layer.picks},
                      {"reuse", layer.reuse},
                      {"recall_of_heat", layer.recall_of_heat},
                      {"load_max_over_mean", layer.load_max_over_mean},
                      {"never_used", layer.never_used}});
  }
  Json json{{"steps", report.num_steps},
            {"experts", report.num_experts},
            {"picks_per_step", report.picks_per_step},
            {"reuse", report.reuse},
            {"recall_of_heat", report.recall_of_heat},
            {"distinct_used", report.distinct_used},
            {"layers", layers}};
  if (!simulation.slots.empty()) {
    Json hit_rates = Json::object();
    for (const SimulatedPolicy& policy : simulation.policies) {
      hit_rates[policy.name] = policy.hit_rates;
    }
    json["simulation"] = {{"slots", simulation.slots}, {"hit_rates", hit_rates}};
  }
  std::cout << DumpJson(json) << "\n";
}

void PrintTables(const TraceReport& report, const TraceSimulation& simulation) {
  std::printf(
      "%lld steps, %zu MoE layers of %lld experts, %.1f picks per step, %lld experts used\n",
      static_cast<long long>(report.num_steps), report.layers.size(),
      static_cast<long long>(report.num_experts), report.picks_per_step,
      static_cast<long long>(report.distinct_used));
  std::printf("picked again for the next token: %.1f %%; foretold by heat: %.1f %%\n\n",
              100 * report.reuse, 100 * report.recall_of_heat);
  std::printf("layer  again %%  by heat %%  load max/mean  never used\n");
  for (const LayerTraceReport& layer : report.layers) {
    std::printf("%5lld %8.1f %10.1f %14.1f %11lld\n", static_cast<long long>(layer.layer),
                100 * layer.reuse, 100 * layer.recall_of_heat, layer.load_max_over_mean,
                static_cast<long long>(layer.never_used));
  }
  if (simulation.slots.empty()) return;
  std::printf("\nhits in %% of picks with so many slots\n%-14s", "");
  for (int64_t slots : simulation.slots) std::printf("%8lld", static_cast<long long>(slots));
  for (const SimulatedPolicy& policy : simulation.policies) {
    std::printf("\n%-14s", policy.name.c_str());
    for (double rate : policy.hit_rates) std::printf("%8.1f", 100 * rate);
  }
  std::printf("\n");
}

void WriteSvg(const std::string& path, const std::string& svg) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << svg;
  file.close();
  if (!file) throw Error(ErrorCode::kIo, "--svg " + path + ": cannot be written");
}

int Trace(const TraceOptions& options) {
  const RouterTrace trace = ReadRouterTrace(
      options.file, options.binary ? TraceFormat::kBinary : TraceFormat::kDetect, options.top_k);
  const TraceReport report = AnalyseTrace(trace, options.experts);
  if (options.experts > 0 && report.num_experts > options.experts) {
    throw Error(ErrorCode::kInvalidArgument,
                "--experts: expected at least " + std::to_string(report.num_experts) + ", as " +
                    options.file + " has picks of so many, got " + std::to_string(options.experts));
  }
  TraceSimulation simulation;
  if (options.simulate || !options.slots.empty()) simulation = SimulateTrace(trace, options.slots);
  if (!options.svg.empty()) WriteSvg(options.svg, HeatMapSvg(trace, options.experts));
  if (options.json) {
    PrintJson(report, simulation);
  } else {
    PrintTables(report, simulation);
  }
  return 0;
}

}  // namespace

void AddTraceCommand(CLI::App& app, int* status) {
  CLI::App* command =
      app.add_subcommand("trace", "Reuse, heat and cache hits of recorded picks (run --trace)");
  auto options = std::make_shared<TraceOptions>();
  command
      ->add_option("file", options->file,
                   "JSON lines with step, layer, ids; or int32 pairs of layer and expert")
      ->required();
  command->add_flag("--binary", options->binary, "The file is pairs (default: looks at it)");
  command
      ->add_option("--top-k", options->top_k,
                   "Picks per token and layer in a file of pairs (default: found out)")
      ->type_name("N")
      ->transform(WholeNumber(1, kMaxTracePicks));
  command
      ->add_option("--experts", options->experts,
                   "Experts per layer (default: one more than the highest in the file)")
      ->type_name("N")
      ->transform(WholeNumber(1, kMaxTraceExperts));
  command->add_flag("--simulate", options->simulate,
                    "Hits of several eviction policies, by number of slots");
  command->add_option("--slots", options->slots, "Simulate these numbers of slots: 100,200")
      ->type_name("N,...")
      ->delimiter(',')
      ->transform(WholeNumber(1, int64_t{1} << 24));
  command->add_option("--svg", options->svg, "Write a heat map")->type_name("FILE");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, status] { *status = Trace(*options); });
}

}  // namespace deltafin
