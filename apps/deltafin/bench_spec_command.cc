// deltafin bench spec: what guesses at the next tokens gain and lose.
#include <memory>

#include "bench_command.h"
#include "flag_checks.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct SpecFlags {
  ModelOptions model;
  SpecBenchOptions options;
  bool json = false;
};

int Bench(SpecFlags flags) {
  flags.options.engine = ToEngineOptions(flags.model);
  return RunBench(flags.options, flags.json, &BenchSpec);
}

}  // namespace

void AddBenchSpecCommand(CLI::App& bench, int* status) {
  CLI::App* command = bench.add_subcommand(
      "spec", "Decode with guesses and without: a text that repeats itself, and a random one");
  auto flags = std::make_shared<SpecFlags>();
  command
      ->add_option("--tokens", flags->options.tokens,
                   "Tokens decoded in each measurement (default: 128)")
      ->type_name("N")
      ->transform(WholeNumber(16, int64_t{1} << 20));
  command
      ->add_option("--seconds", flags->options.seconds,
                   "Measure for about so long (default: 120), one pass of each at least")
      ->type_name("S")
      ->check(Number(0, 86400));
  command->add_flag("--json", flags->json, "One JSON object: machine, results, targets");
  AddModelOptions(*command, &flags->model);
  command->callback([flags, status] { *status = Bench(*flags); });
}

}  // namespace deltafin
