// deltafin bench disk: how fast the model's disk gives random experts.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "bench_command.h"
#include "flag_checks.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct DiskOptions {
  std::string model;
  std::vector<std::string> also;
  double seconds = 20;
  bool json = false;
};

}  // namespace

void AddBenchDiskCommand(CLI::App& bench, int* status) {
  CLI::App* command = bench.add_subcommand(
      "disk", "Read random spans of the model's shards in every way, past the page cache");
  auto options = std::make_shared<DiskOptions>();
  command->add_option("--model", options->model, "Folder of the checkpoint (default: as for run)")
      ->type_name("DIR");
  AddAlsoOption(*command, &options->also);
  command
      ->add_option("--seconds", options->seconds,
                   "Measure for about so long (default: 20); every way at least once")
      ->type_name("S")
      ->check(Number(0, 86400));
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, status] {
    DiskBenchOptions bench_options;
    bench_options.model_dir = options->model.empty() ? DefaultModelDir() : options->model;
    bench_options.also_dirs = options->also;
    bench_options.seconds = options->seconds;
    if (isatty(STDERR_FILENO) != 0) {
      bench_options.on_progress = [](const std::string& what) {
        std::fprintf(stderr, "measuring, %s\n", what.c_str());
      };
    }
    *status = PrintBenchReport(BenchDisk(bench_options), options->json);
  });
}

}  // namespace deltafin
