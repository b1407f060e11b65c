// deltafin warm: fetches the experts that a trace says are used most.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "command_line.h"
#include "deltafin/json.h"
#include "deltafin/trace_analysis.h"
#include "flag_checks.h"
#include "hub_options.h"
#include "interrupt.h"
#include "setup_display.h"

namespace deltafin {
namespace {

struct WarmFlags {
  HubFlags hub;
  std::string trace;
  int64_t top = 0;
  bool json = false;
};

// (layer, expert), the most picked first; those that were picked as often in their order.
std::vector<std::pair<int, int>> MostPicked(const RouterTrace& trace, int64_t count) {
  std::map<std::pair<int, int>, int64_t> picks;
  for (const TracedPicks& row : trace.picks) {
    for (const int32_t id : row.ids) ++picks[{row.layer, id}];
  }
  std::vector<std::pair<std::pair<int, int>, int64_t>> sorted(picks.begin(), picks.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (static_cast<int64_t>(sorted.size()) > count) sorted.resize(static_cast<size_t>(count));
  std::vector<std::pair<int, int>> experts;
  for (const auto& [expert, times] : sorted) experts.push_back(expert);
  return experts;
}

int RunWarmCommand(const WarmFlags& flags) {
  SetupOptions options;
  options.hub = ToHubOptions(flags.hub);
  options.dir = InstallDir(flags.hub);
  options.also = flags.hub.also;
  options.mode = SetupMode::kStream;
  options.only_experts = true;
  options.verify = false;
  options.experts = MostPicked(ReadRouterTrace(flags.trace), flags.top);
  CatchInterrupts();
  SetupReport report;
  {
    SetupDisplay display(flags.json ? DisplayStyle::kJson : DisplayStyle::kPeople);
    options.on_progress = [&](const SetupProgress& progress) { return display.Show(progress); };
    report = RunSetup(options);
  }
  if (flags.json) {
    std::cout << DumpJson({{"event", "done"},
                           {"experts", options.experts.size()},
                           {"fetched_bytes", report.fetched_bytes},
                           {"local_bytes", report.local_bytes},
                           {"total_bytes", report.total_bytes}})
              << std::endl;
  } else {
    std::printf("%zu experts are here now, %s of them fetched by this run\n",
                options.experts.size(), DiskBytes(report.fetched_bytes).c_str());
  }
  return 0;
}

}  // namespace

void AddWarmCommand(CLI::App& app, int* status) {
  CLI::App* command =
      app.add_subcommand("warm", "Fetch the experts that a trace (run --trace) picked most");
  auto flags = std::make_shared<WarmFlags>();
  AddHubFlags(*command, &flags->hub);
  command->add_option("--trace", flags->trace, "The trace")->required()->type_name("FILE");
  command->add_option("--top", flags->top, "How many experts, of all layers together")
      ->required()
      ->type_name("N")
      ->transform(WholeNumber(1, int64_t{1} << 24));
  command->add_flag("--json", flags->json, "One JSON object a line on stdout for each event");
  command->callback([flags, status] { *status = RunWarmCommand(*flags); });
}

}  // namespace deltafin
