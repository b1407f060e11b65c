// deltafin bench kernels: the operators at the sizes of the full model.
#include <memory>

#include "bench_command.h"
#include "flag_checks.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct KernelBenchFlags {
  KernelBenchOptions options;
  bool json = false;
};

int Bench(KernelBenchFlags flags) {
  flags.options.model_dir = BundledModelDir();
  return RunBench(flags.options, flags.json, &BenchKernels);
}

}  // namespace

void AddBenchKernelsCommand(CLI::App& bench, int* status) {
  CLI::App* command = bench.add_subcommand(
      "kernels",
      "The operators at the sizes of Kimi K3 on cold weights, next to read bandwidth and FMA peak");
  auto flags = std::make_shared<KernelBenchFlags>();
  command->add_flag("--targets-only", flags->options.targets_only,
                    "Only what the targets need: half a minute instead of several");
  command
      ->add_option("--isa", flags->options.cpu_isa,
                   "Kernels: plain, avx2, avx512 or neon (default: the best)")
      ->type_name("NAME");
  command
      ->add_option("--threads", flags->options.threads,
                   "Measure with so many (default: 1, 2, 4, ... and all processors)")
      ->type_name("N")
      ->transform(WholeNumber(1, 1024));
  command->add_flag("--json", flags->json, "One JSON object: machine, results, targets");
  command->callback([flags, status] { *status = Bench(*flags); });
}

}  // namespace deltafin
