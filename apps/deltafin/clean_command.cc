// deltafin clean: gives disk space back.
#include <cstdio>
#include <iostream>
#include <memory>

#include "command_line.h"
#include "deltafin/json.h"
#include "hub_options.h"
#include "setup_display.h"

namespace deltafin {
namespace {

struct CleanFlags {
  HubFlags hub;
  std::string to;
  bool dry_run = false;
  bool json = false;
};

int RunCleanCommand(const CleanFlags& flags) {
  CleanOptions options;
  options.dir = InstallDir(flags.hub);
  options.also = flags.hub.also;
  options.keep_bytes = ParseDiskBytes("--to", flags.to);
  options.dry_run = flags.dry_run;
  const CleanReport report = RunClean(options);
  if (flags.json) {
    std::cout << DumpJson({{"local_bytes", report.local_bytes},
                           {"freed_bytes", report.freed_bytes},
                           {"freed_experts", report.freed_experts}})
              << std::endl;
    return 0;
  }
  std::printf("%s of experts were here; %lld experts %s freed, %s\n",
              DiskBytes(report.local_bytes).c_str(), static_cast<long long>(report.freed_experts),
              flags.dry_run ? "would be" : "were", DiskBytes(report.freed_bytes).c_str());
  return 0;
}

}  // namespace

void AddCleanCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand(
      "clean", "Free experts that setup or streaming has fetched, the least used first");
  auto flags = std::make_shared<CleanFlags>();
  AddFolderFlags(*command, &flags->hub);
  command->add_option("--to", flags->to, "Free until at most so much of them is left, e.g. 200G")
      ->required()
      ->type_name("SIZE");
  command->add_flag("--dry-run", flags->dry_run, "Only say what would be freed");
  command->add_flag("--json", flags->json, "One JSON object");
  command->callback([flags, status] { *status = RunCleanCommand(*flags); });
}

}  // namespace deltafin
