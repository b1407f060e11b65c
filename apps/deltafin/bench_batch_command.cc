// deltafin bench batch: several sequences in one pass.
#include <memory>

#include "bench_command.h"
#include "flag_checks.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct BatchFlags {
  ModelOptions model;
  BatchBenchOptions options;
  bool json = false;
};

int Bench(BatchFlags flags) {
  flags.options.engine = ToEngineOptions(flags.model);
  return RunBench(flags.options, flags.json, &BenchBatch);
}

}  // namespace

void AddBenchBatchCommand(CLI::App& bench, int* status) {
  CLI::App* command = bench.add_subcommand(
      "batch", "Decode 1, 2, 4 and 8 independent sequences that share their passes");
  auto flags = std::make_shared<BatchFlags>();
  command->add_option("--tokens", flags->options.tokens, "Passes of each measurement (default: 16)")
      ->type_name("N")
      ->transform(WholeNumber(1, int64_t{1} << 20));
  command
      ->add_option("--seconds", flags->options.seconds,
                   "Measure for about so long (default: 60), one pass of each at least")
      ->type_name("S")
      ->check(Number(0, 86400));
  command->add_flag("--json", flags->json, "One JSON object: machine, results, targets");
  AddModelOptions(*command, &flags->model);
  command->callback([flags, status] { *status = Bench(*flags); });
}

}  // namespace deltafin
