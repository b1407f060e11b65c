// deltafin convert: what can be done once, so that every token is faster.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "command_line.h"
#include "deltafin/convert.h"
#include "flag_checks.h"
#include "gigabytes.h"
#include "interrupt.h"
#include "model_options.h"
#include "overwritten_line.h"
#include "terminal.h"

namespace deltafin {
namespace {

struct ConvertFlags {
  std::string model;
  std::vector<std::string> also;
  std::string to;
  int threads = 0;
  bool verify = false;
};

// One line that is written over on a terminal, a line every ten seconds elsewhere.
class ConvertLine {
 public:
  void Show(const ConvertProgress& p) {
    const auto now = std::chrono::steady_clock::now();
    const bool done = p.bytes_done == p.total_bytes;
    if (!done && now - shown_ < interval_) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = seconds > 0 ? Gigabytes(p.bytes_done) / seconds : 0;
    const double left = rate > 0 ? (Gigabytes(p.total_bytes) - Gigabytes(p.bytes_done)) / rate : 0;
    std::fprintf(stderr, "%s%lld of %lld layers, %.2f of %.2f GB, %.2f GB/s, %.0f s left%s",
                 is_terminal_ ? kBeginOverwrite : "", static_cast<long long>(p.layers_done),
                 static_cast<long long>(p.num_layers), Gigabytes(p.bytes_done),
                 Gigabytes(p.total_bytes), rate, left, is_terminal_ ? kEndOverwrite : "\n");
    line_is_open_ = is_terminal_;
  }
  ~ConvertLine() {
    if (line_is_open_) std::fputc('\n', stderr);
  }

 private:
  const bool is_terminal_ = IsTerminal(STDERR_FILENO);
  const std::chrono::milliseconds interval_{is_terminal_ ? 200 : 10'000};
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_ = start_ - interval_;
  bool line_is_open_ = false;
};

void Convert(const ConvertFlags& flags) {
  if (flags.to != "int8") {
    throw Error(ErrorCode::kInvalidArgument, "--to: expected int8, got \"" + flags.to + "\"");
  }
  CatchInterrupts();
  ConvertResult result;
  {
    ConvertLine line;
    ConvertOptions options;
    options.model_dir = flags.model.empty() ? DefaultModelDir() : flags.model;
    options.also_dirs = flags.also;
    options.threads = flags.threads;
    options.progress = [&line](const ConvertProgress& p) {
      line.Show(p);
      return InterruptSignal() == 0;
    };
    result = flags.verify ? VerifyInt8Spine(options) : ConvertSpineToInt8(options);
  }
  if (flags.verify) {
    std::printf("%s: %lld layers, %.2f GB: all checksums are right\n", result.folder.c_str(),
                static_cast<long long>(result.layers_kept), Gigabytes(result.bytes));
    return;
  }
  std::printf(
      "%s: %lld layers written, %lld kept, %.2f GB; used from now on (--spine bf16 for the "
      "released bits)\n",
      result.folder.c_str(), static_cast<long long>(result.layers_written),
      static_cast<long long>(result.layers_kept), Gigabytes(result.bytes));
}

}  // namespace

void AddConvertCommand(CLI::App& app, int* status) {
  CLI::App* command =
      app.add_subcommand("convert", "Converts weights once, so that tokens are faster");
  command->require_subcommand(1);
  CLI::App* spine = command->add_subcommand(
      "spine",
      "The spine (all weights but the routed experts) as int8: half the bytes, other bits. "
      "Goes on where an earlier run was stopped");
  auto flags = std::make_shared<ConvertFlags>();
  spine->add_option("--to", flags->to, "int8")->required()->type_name("FORMAT");
  spine
      ->add_option("--model", flags->model,
                   "Folder of the checkpoint (default: DELTAFIN_ROOT/Kimi-K3, else the bundled "
                   "k3-nano)")
      ->type_name("DIR");
  AddAlsoOption(*spine, &flags->also);
  spine->add_option("--threads", flags->threads, "Threads (default: all processors)")
      ->type_name("N")
      ->transform(WholeNumber(1, 1024));
  spine->add_flag("--verify", flags->verify, "Only compare the checksums of a conversion");
  spine->callback([flags, status] {
    Convert(*flags);
    *status = 0;
  });
}

}  // namespace deltafin
