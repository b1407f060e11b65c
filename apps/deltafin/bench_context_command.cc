// deltafin bench context: what a token costs after a long text.
#include <memory>

#include "bench_command.h"
#include "flag_checks.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct ContextFlags {
  ModelOptions model;
  ContextBenchOptions options;
  bool json = false;
};

int Bench(ContextFlags flags) {
  flags.options.engine = ToEngineOptions(flags.model);
  return RunBench(flags.options, flags.json, &BenchContext);
}

}  // namespace

void AddBenchContextCommand(CLI::App& bench, int* status) {
  CLI::App* command = bench.add_subcommand(
      "context", "The time of a token after contexts of several lengths, and their memory");
  auto flags = std::make_shared<ContextFlags>();
  command
      ->add_option("--contexts", flags->options.contexts,
                   "Tokens of context, ascending (default: 1024,32768,131072)")
      ->type_name("N,N,...")
      ->delimiter(',')
      ->transform(WholeNumber());
  command->add_option("--tokens", flags->options.tokens, "Tokens decoded at each (default: 8)")
      ->type_name("N")
      ->transform(WholeNumber(1, int64_t{1} << 20));
  command->add_flag("--json", flags->json, "One JSON object: machine, results, targets");
  AddModelOptions(*command, &flags->model);
  command->callback([flags, status] { *status = Bench(*flags); });
}

}  // namespace deltafin
