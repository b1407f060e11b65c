// deltafin bench decode: how much of the machine decoding uses.
#include <memory>

#include "bench_command.h"
#include "flag_checks.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct DecodeFlags {
  DecodeBenchOptions options;
  std::string spine = "bf16";
  bool only_cold = false;
  bool only_warm = false;
  bool json = false;
};

int Bench(DecodeFlags flags) {
  if (flags.options.model_dir.empty()) flags.options.model_dir = DefaultModelDir();
  flags.options.spine = ParseSpine(flags.spine);
  flags.options.cold = !flags.only_warm;
  flags.options.warm = !flags.only_cold;
  return RunBench(flags.options, flags.json, &BenchDecode);
}

}  // namespace

void AddBenchDecodeCommand(CLI::App& bench, int* status) {
  CLI::App* command = bench.add_subcommand(
      "decode",
      "Token by token under several RAM budgets, cold and warm, next to what the disk, "
      "the memory and the kernels give");
  auto flags = std::make_shared<DecodeFlags>();
  command
      ->add_option("--model", flags->options.model_dir,
                   "Folder of a checkpoint with Kimi K3's widths: deltafin synth DIR --layers 4 "
                   "--experts 64 --vocab 8192 (default: as for run)")
      ->type_name("DIR");
  AddAlsoOption(*command, &flags->options.also_dirs);
  command->add_option("--spine", flags->spine, "bf16 (default), int8 or auto")->type_name("NAME");
  command->add_option("--threads", flags->options.threads, "Compute threads (default: all)")
      ->type_name("N")
      ->transform(WholeNumber(1, 1024));
  command
      ->add_option("--tokens", flags->options.tokens,
                   "Tokens that are measured at each budget (default: 6, and as many as 5 seconds "
                   "take)")
      ->type_name("N")
      ->transform(WholeNumber(1, 100));
  command
      ->add_option("--budgets", flags->options.budgets,
                   "RAM budgets, from the least to all that the model can use (default: 5)")
      ->type_name("N")
      ->transform(WholeNumber(2, 50));
  command
      ->add_option("--only", flags->options.only, "Only these of the budgets: 1,3 (default: all)")
      ->type_name("N,...")
      ->delimiter(',')
      ->transform(WholeNumber(1, 50));
  CLI::Option* cold = command->add_flag("--cold", flags->only_cold, "Only past the page cache");
  command->add_flag("--warm", flags->only_warm, "Only out of the page cache")->excludes(cold);
  command->add_flag("--json", flags->json, "One JSON object");
  command->callback([flags, status] { *status = Bench(*flags); });
}

}  // namespace deltafin
