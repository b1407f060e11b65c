// deltafin synth: a checkpoint with the layout of Kimi K3 and made-up weights.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "command_line.h"
#include "deltafin/error.h"
#include "deltafin/synth.h"
#include "flag_checks.h"
#include "gigabytes.h"
#include "interrupt.h"

namespace deltafin {
namespace {

constexpr int kBarWidth = 30;
constexpr double kSecondsPerLine = 10;

// On a terminal a bar that stays where it is, else a line now and then.
class ProgressLine {
 public:
  void Show(const SynthProgress& p) {
    const bool is_over = p.done_bytes == p.total_bytes;
    if (!terminal_ && !is_over && p.seconds < next_line_) return;
    if (is_over && finished_) return;
    finished_ = is_over;
    next_line_ = p.seconds + kSecondsPerLine;
    const double part =
        p.total_bytes == 0 ? 1
                           : static_cast<double>(p.done_bytes) / static_cast<double>(p.total_bytes);
    const double rate = p.seconds > 0 ? static_cast<double>(p.done_bytes) / p.seconds : 0;
    const double left = rate > 0 ? static_cast<double>(p.total_bytes - p.done_bytes) / rate : 0;
    if (terminal_) {
      const int filled = static_cast<int>(part * kBarWidth);
      std::string bar(static_cast<size_t>(filled), '#');
      bar.resize(kBarWidth, '.');
      std::fprintf(stderr, "\r[%s] ", bar.c_str());
    }
    std::fprintf(stderr, "%3.0f %%, %.1f of %.1f GB, %.2f GB/s, %.0f s left  %s", 100 * part,
                 Gigabytes(p.done_bytes), Gigabytes(p.total_bytes), rate / 1e9, left,
                 terminal_ && !is_over ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  double next_line_ = 0;
  bool finished_ = false;
};

SynthLike ParseLike(const std::string& text) {
  if (text == "k3") return SynthLike::kK3;
  if (text == "nano") return SynthLike::kNano;
  throw Error(ErrorCode::kInvalidArgument, "--like: expected k3 or nano, got \"" + text + "\"");
}

int Synth(SynthOptions options) {
  const SynthSize size = SizeOfSynth(options);
  std::fprintf(stderr,
               "%s: %lld layers, %lld experts per layer, vocabulary %lld: %d shards of %.1f GB, "
               "%.1f GB to write, %.1f GB free\n",
               options.dir.c_str(), static_cast<long long>(size.layers),
               static_cast<long long>(size.experts), static_cast<long long>(size.vocab),
               size.num_shards, Gigabytes(size.file_bytes), Gigabytes(size.write_bytes),
               Gigabytes(size.free_bytes));
  CatchInterrupts();
  ProgressLine line;
  options.on_progress = [&line](const SynthProgress& progress) {
    line.Show(progress);
    return InterruptSignal() == 0;
  };
  WriteSynth(options);
  return 0;
}

}  // namespace

void AddSynthCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand(
      "synth", "Write a checkpoint with the layout of Kimi K3 and made-up weights");
  auto options = std::make_shared<SynthOptions>();
  auto like = std::make_shared<std::string>("k3");
  command->add_option("dir", options->dir, "The folder to write")->required()->type_name("DIR");
  command->add_option("--like", *like, "Widths: k3 (default) or nano")->type_name("NAME");
  command
      ->add_option("--layers", options->layers,
                   "Layers (default: 4, or 13 with --like nano, or 93 with --skeleton)")
      ->type_name("N")
      ->transform(WholeNumber(1, 1000));
  command
      ->add_option("--experts", options->experts,
                   "Experts of a layer (default: 896, or 64 with --like nano)")
      ->type_name("N")
      ->transform(WholeNumber(1, 65536));
  command
      ->add_option("--vocab", options->vocab, "Tokens (default: 163840, or 4608 with --like nano)")
      ->type_name("N")
      ->transform(WholeNumber(1, int64_t{1} << 20));
  command->add_option("--seed", options->seed, "Other weights for another number (default: 1)")
      ->type_name("N")
      ->transform(SeedNumber());
  command
      ->add_option("--skew", options->skew,
                   "How much some experts are preferred: 0 (not) to 4 (default: 1)")
      ->type_name("X")
      ->check(Number(0, 4));
  command
      ->add_option("--reuse", options->reuse,
                   "Part of a token's experts that the token before it had too, about (default: "
                   "0.3, or the most that is possible)")
      ->type_name("X")
      ->check(Number(0, 1));
  command->add_flag("--no-vision", options->no_vision,
                    "Without the vision shards, which text does not need");
  command->add_flag("--skeleton", options->skeleton,
                    "Holes in place of weights: the full size, hardly any disk space");
  command->add_option("--threads", options->threads, "Threads (default: all processors)")
      ->type_name("N")
      ->transform(WholeNumber(1, 1024));
  command->callback([options, like, status] {
    options->like = ParseLike(*like);
    *status = Synth(*options);
  });
}

}  // namespace deltafin
