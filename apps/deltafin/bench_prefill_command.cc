// deltafin bench prefill: how fast a prompt is read.
#include <memory>

#include "bench_command.h"
#include "flag_checks.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct PrefillFlags {
  ModelOptions model;
  PrefillBenchOptions options;
  bool json = false;
};

int Bench(PrefillFlags flags) {
  flags.options.engine = ToEngineOptions(flags.model);
  return RunBench(flags.options, flags.json, &BenchPrefill);
}

}  // namespace

void AddBenchPrefillCommand(CLI::App& bench, int* status) {
  CLI::App* command = bench.add_subcommand(
      "prefill", "Read a prompt in passes of several sizes: tokens per second, bytes read");
  auto flags = std::make_shared<PrefillFlags>();
  command
      ->add_option("--tokens", flags->options.tokens,
                   "Tokens of the prompt (default: as many as the largest pass)")
      ->type_name("N")
      ->transform(WholeNumber(1, int64_t{1} << 20));
  command
      ->add_option("--chunks", flags->options.chunks,
                   "Positions of a pass (default: 1,8,64,128,... and the largest)")
      ->type_name("N,N,...")
      ->delimiter(',')
      ->transform(WholeNumber());
  command->add_flag("--json", flags->json, "One JSON object: machine, results, targets");
  AddModelOptions(*command, &flags->model);
  command->callback([flags, status] { *status = Bench(*flags); });
}

}  // namespace deltafin
