// deltafin verify: looks for damage, and repairs it.
#include <cstdio>
#include <iostream>
#include <memory>

#include "command_line.h"
#include "deltafin/json.h"
#include "hub_options.h"
#include "interrupt.h"
#include "setup_display.h"

namespace deltafin {
namespace {

struct VerifyFlags {
  HubFlags hub;
  bool quick = false;
  bool full = false;
  bool repair = false;
  bool json = false;
};

int RunVerifyCommand(const VerifyFlags& flags) {
  VerifyOptions options;
  options.hub = ToHubOptions(flags.hub);
  options.dir = InstallDir(flags.hub);
  options.also = flags.hub.also;
  options.depth = flags.quick  ? VerifyOptions::Depth::kQuick
                  : flags.full ? VerifyOptions::Depth::kFull
                               : VerifyOptions::Depth::kRanges;
  options.repair = flags.repair;
  CatchInterrupts();
  VerifyReport r;
  {
    SetupDisplay display(flags.json ? DisplayStyle::kJson : DisplayStyle::kPeople);
    options.on_progress = [&](const SetupProgress& progress) { return display.Show(progress); };
    r = RunVerify(options);
  }
  if (flags.json) {
    std::cout << DumpJson({{"event", "done"},
                           {"shards", r.num_shards},
                           {"complete_shards", r.complete_shards},
                           {"hashed_shards", r.hashed_shards},
                           {"checked_bytes", r.checked_bytes},
                           {"local_bytes", r.local_bytes},
                           {"total_bytes", r.total_bytes},
                           {"bad_bytes", r.bad_bytes},
                           {"repaired_bytes", r.repaired_bytes},
                           {"problems", r.problems}})
              << std::endl;
  } else {
    for (const std::string& problem : r.problems) std::printf("%s\n", problem.c_str());
    std::printf(
        "%s of %s are here in %d shards, %d of them complete; %s checked, %d SHA-256 "
        "compared: %s\n",
        DiskBytes(r.local_bytes).c_str(), DiskBytes(r.total_bytes).c_str(), r.num_shards,
        r.complete_shards, DiskBytes(r.checked_bytes).c_str(), r.hashed_shards,
        r.problems.empty() ? "all is well"
        : r.repaired       ? ("repaired, " + DiskBytes(r.repaired_bytes) + " fetched").c_str()
                           : "damaged; to fetch what is bad: deltafin verify --repair");
  }
  return r.problems.empty() || r.repaired ? 0 : 1;
}

}  // namespace

void AddVerifyCommand(CLI::App& app, int* status) {
  CLI::App* command =
      app.add_subcommand("verify", "Compare what is on the disk with its checksums, and repair it");
  auto flags = std::make_shared<VerifyFlags>();
  AddHubFlags(*command, &flags->hub);
  CLI::Option* quick =
      command->add_flag("--quick", flags->quick, "Sizes, headers and holes only: reads no weights");
  command->add_flag("--full", flags->full, "The SHA-256 of complete shards too")->excludes(quick);
  command->add_flag("--repair", flags->repair, "Fetch what is bad");
  command->add_flag("--json", flags->json, "One JSON object a line on stdout for each event");
  command->callback([flags, status] { *status = RunVerifyCommand(*flags); });
}

}  // namespace deltafin
