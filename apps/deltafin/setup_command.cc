// deltafin setup: brings a model from the hub, whole or as far as it is needed.
#include <poll.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "command_line.h"
#include "deltafin/json.h"
#include "hub_options.h"
#include "interrupt.h"
#include "setup_display.h"

namespace deltafin {
namespace {

constexpr int kInterruptEveryMs = 100;

struct SetupFlags {
  HubFlags hub;
  std::string layers;
  bool full = false;
  bool stream = false;
  bool spine_only = false;
  bool dry_run = false;
  bool skip_verify = false;
  bool yes = false;
  bool json = false;
};

// "1-40,92"
std::vector<std::pair<int, int>> ParseLayers(const std::string& text) {
  std::vector<std::pair<int, int>> layers;
  const auto fail = [&] {
    throw Error(ErrorCode::kInvalidArgument,
                "--layers: expected layers like 1-40,92, got \"" + text + "\"");
  };
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&] {
    int value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 0) fail();
    at = next;
    return value;
  };
  while (at != end) {
    const int first = number();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
    }
    if (last < first || (at != end && *at != ',')) fail();
    layers.emplace_back(first, last);
    if (at != end && ++at == end) fail();
  }
  return layers;
}

const char* ModeName(SetupMode mode) { return mode == SetupMode::kFull ? "full" : "streaming"; }

Json ToJson(const SetupReport& r) {
  return {{"dir", r.dir},
          {"source", r.source},
          {"revision", r.revision},
          {"mode", ModeName(r.mode)},
          {"shards", r.num_shards},
          {"complete_shards", r.complete_shards},
          {"total_bytes", r.total_bytes},
          {"local_bytes", r.local_bytes},
          {"wanted_bytes", r.wanted_bytes},
          {"missing_bytes", r.missing_bytes},
          {"free_bytes", r.free_bytes},
          {"margin_bytes", r.margin_bytes},
          {"lacking_bytes", r.lacking_bytes},
          {"fetched_bytes", r.fetched_bytes},
          {"seconds", r.seconds},
          {"bytes_per_second", r.bytes_per_second}};
}

std::string AtRate(uint64_t bytes, double rate) {
  if (rate <= 0) return "";
  return " (" + Duration(static_cast<double>(bytes) / rate) + " at the measured " +
         DiskBytes(static_cast<uint64_t>(rate)) + "/s)";
}

void PrintPlan(const SetupReport& r) {
  std::fprintf(stderr, "%s, revision %s\n", r.source.c_str(), r.revision.c_str());
  std::fprintf(stderr, "%s: %s of %s are here, %d of %d shards are complete\n", r.dir.c_str(),
               DiskBytes(r.local_bytes).c_str(), DiskBytes(r.total_bytes).c_str(),
               r.complete_shards, r.num_shards);
  std::fprintf(stderr, "%s free beyond a margin of %s\n", DiskBytes(r.free_bytes).c_str(),
               DiskBytes(r.margin_bytes).c_str());
  std::fprintf(stderr, "%s install: %s to fetch%s\n", ModeName(r.mode),
               DiskBytes(r.wanted_bytes).c_str(),
               AtRate(r.wanted_bytes, r.bytes_per_second).c_str());
  if (r.mode == SetupMode::kStream && r.lacking_bytes > 0) {
    std::fprintf(stderr,
                 "a full install (%s more) does not fit: %s more would have to be free. Experts "
                 "are fetched when they are needed, and kept\n",
                 DiskBytes(r.missing_bytes).c_str(), DiskBytes(r.lacking_bytes).c_str());
  } else if (r.mode == SetupMode::kStream) {
    std::fprintf(stderr,
                 "a full install (%s more) fits: --full. Without it experts are fetched when they "
                 "are needed, and kept\n",
                 DiskBytes(r.missing_bytes).c_str());
  }
}

bool Confirm(const SetupReport& report) {
  if (report.wanted_bytes == 0) return true;
  std::fprintf(stderr, "Fetch %s? [Y/n] ", DiskBytes(report.wanted_bytes).c_str());
  // Ctrl-C alone would not end the wait for a line.
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (poll(&input, 1, kInterruptEveryMs) <= 0) {
    if (InterruptSignal() != 0) throw Error(ErrorCode::kCancelled, "stopped on request");
  }
  std::string answer;
  if (!std::getline(std::cin, answer)) return false;
  return answer.empty() || answer[0] == 'y' || answer[0] == 'Y';
}

void PrintEnd(const SetupReport& r) {
  if (r.fetched_bytes > 0) {
    std::fprintf(stderr, "fetched %s in %s, %s/s\n", DiskBytes(r.fetched_bytes).c_str(),
                 Duration(r.seconds).c_str(),
                 DiskBytes(static_cast<uint64_t>(r.bytes_per_second)).c_str());
  }
  std::fprintf(stderr, "%s: %d of %d shards are complete\n", r.dir.c_str(), r.complete_shards,
               r.num_shards);
  std::printf("deltafin run --model %s --chat --prompt \"Hello\"\n", r.dir.c_str());
}

int RunSetupCommand(const SetupFlags& flags) {
  SetupOptions options;
  options.hub = ToHubOptions(flags.hub);
  options.dir = InstallDir(flags.hub);
  options.also = flags.hub.also;
  options.mode = flags.full                         ? SetupMode::kFull
                 : flags.stream || flags.spine_only ? SetupMode::kStream
                                                    : SetupMode::kAuto;
  options.layers = ParseLayers(flags.layers);
  if (!options.layers.empty() && options.mode == SetupMode::kAuto) options.mode = SetupMode::kFull;
  options.dry_run = flags.dry_run;
  options.verify = !flags.skip_verify;
  CatchInterrupts();
  SetupDisplay display(flags.json ? DisplayStyle::kJson : DisplayStyle::kPeople);
  options.on_progress = [&](const SetupProgress& progress) { return display.Show(progress); };
  bool declined = false;
  const bool ask =
      !flags.yes && !flags.json && isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
  options.confirm = [&](const SetupReport& report) {
    display.EndLine();
    if (flags.json) {
      Json event = ToJson(report);
      event["event"] = "plan";
      std::cout << DumpJson(event) << std::endl;
    } else {
      PrintPlan(report);
    }
    declined = ask && !Confirm(report);
    return !declined;
  };
  SetupReport report;
  try {
    report = RunSetup(options);
  } catch (const Error& error) {
    display.EndLine();
    if (error.code() == ErrorCode::kCancelled) {
      std::fprintf(stderr, "stopped; what came is kept: run the same command to go on\n");
    }
    throw;
  }
  display.EndLine();
  if (declined) return 1;
  if (flags.json) {
    Json event = ToJson(report);
    event["event"] = flags.dry_run ? "plan" : "done";
    std::cout << DumpJson(event) << std::endl;
  } else if (flags.dry_run) {
    PrintPlan(report);
  } else {
    PrintEnd(report);
  }
  return 0;
}

}  // namespace

void AddSetupCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand(
      "setup",
      "Fetch the model from the hub: all of it where there is room, else what every token "
      "needs. Goes on where an earlier run was stopped");
  auto flags = std::make_shared<SetupFlags>();
  AddHubFlags(*command, &flags->hub);
  CLI::Option* full = command->add_flag("--full", flags->full, "All of it");
  CLI::Option* stream = command->add_flag(
      "--stream", flags->stream, "The spine; experts are fetched when they are needed, and kept");
  CLI::Option* spine_only =
      command->add_flag("--spine-only", flags->spine_only, "The spine and nothing else")
          ->excludes(full);
  stream->excludes(full);
  command
      ->add_option("--layers", flags->layers, "The spine, and only these layers' experts: 1-40,92")
      ->type_name("LIST")
      ->excludes(full)
      ->excludes(stream)
      ->excludes(spine_only);
  command->add_flag("--dry-run", flags->dry_run, "Only say what there is and what is missing");
  command->add_flag("--skip-verify", flags->skip_verify,
                    "Do not compare the SHA-256 of shards that become complete");
  command->add_flag("--yes,-y", flags->yes, "Do not ask");
  command->add_flag("--json", flags->json, "One JSON object a line on stdout for each event");
  command->callback([flags, status] { *status = RunSetupCommand(*flags); });
}

}  // namespace deltafin
