// deltafin quality: how well a model predicts a text, and what a setting changes.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "command_line.h"
#include "deltafin/json.h"
#include "deltafin/quality.h"
#include "environment.h"
#include "flag_checks.h"
#include "interrupt.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct QualityFlags {
  ModelOptions model;
  std::string text;
  std::string against;
  std::string logits;
  std::string scratch;
  int64_t max_tokens = 0;
  bool json = false;
};

// One of the settings of --against; false when there is no such setting.
bool ApplySetting(const std::string& setting, ModelOptions* reference) {
  if (setting == "bf16" || setting == "spine=bf16") {
    reference->spine = "bf16";
  } else if (setting == "int8" || setting == "spine=int8") {
    reference->spine = "int8";
  } else if (setting == "f32" || setting == "cache=f32") {
    reference->cache = "f32";
  } else if (setting == "cache=bf16") {
    reference->cache = "bf16";
  } else if (setting == "exact" || setting == "numerics=exact") {
    reference->numerics = "exact";
  } else if (setting == "approx" || setting == "numerics=approx") {
    reference->numerics = "approx";
  } else {
    return false;
  }
  return true;
}

// "bf16,cache=f32"
bool ParseSettings(const std::string& text, ModelOptions* reference) {
  std::istringstream settings(text);
  for (std::string setting; std::getline(settings, setting, ',');) {
    if (!ApplySetting(setting, reference)) return false;
  }
  return true;
}

QualityReference ParseAgainst(const QualityFlags& flags) {
  QualityReference against;
  against.name = flags.against;
  if (flags.against.empty()) return against;
  ModelOptions reference = flags.model;
  if (ParseSettings(flags.against, &reference)) {
    against.engine = ToEngineOptions(reference);
    return against;
  }
  std::ifstream file(flags.against, std::ios::binary);
  if (!file) {
    throw Error(ErrorCode::kInvalidArgument,
                "--against: expected a file, or settings like bf16, int8, cache=f32, exact or "
                "bf16,cache=f32, got \"" +
                    flags.against + "\"");
  }
  char first = 0;
  file >> first;  // JSON begins with a brace; as a float32 that would be a logit of 1e-38 or 1e36
  (first == '{' ? against.logprobs_path : against.logits_path) = flags.against;
  return against;
}

std::string ScratchPath(const std::string& folder) {
  const std::string chosen = !folder.empty()                  ? folder
                             : !Environment("TMPDIR").empty() ? Environment("TMPDIR")
                                                              : "/var/tmp";
  return (std::filesystem::path(chosen) / ("deltafin-quality-" + std::to_string(getpid())))
      .string();
}

Json ToJson(const QualityReport& report) {
  Json json{{"engine", report.description},
            {"tokens", report.tokens},
            {"windows", report.windows},
            {"predictions", report.predictions},
            {"mean_nll", report.mean_nll},
            {"perplexity", report.perplexity},
            {"bits_per_byte", report.bits_per_byte},
            {"top1_accuracy", report.top1_accuracy},
            {"seconds", report.seconds},
            {"against", nullptr}};
  if (!report.comparison) return json;
  const QualityComparison& c = *report.comparison;
  json["against"] = {{"reference", c.reference},
                     {"engine", c.description},
                     {"predictions", c.predictions},
                     {"mean_nll", c.mean_nll},
                     {"perplexity", c.perplexity},
                     {"nll_difference", c.nll_difference},
                     {"nll_difference_error", c.nll_difference_error},
                     {"mean_kl", c.mean_kl},
                     {"max_kl", c.max_kl},
                     {"max_kl_position", c.max_kl_position},
                     {"top1_agreement", c.top1_agreement},
                     {"max_shift", c.max_shift},
                     {"max_shift_position", c.max_shift_position},
                     {"partial", c.partial}};
  return json;
}

void Print(const QualityReport& report) {
  std::printf("%lld tokens in %lld window%s, %.1f s\n", static_cast<long long>(report.tokens),
              static_cast<long long>(report.windows), report.windows == 1 ? "" : "s",
              report.seconds);
  std::printf("mean NLL %.6f nats per token, perplexity %.4f, %.4f bits per byte\n",
              report.mean_nll, report.perplexity, report.bits_per_byte);
  std::printf("the most likely token came at %.2f %% of %lld predictions\n",
              100 * report.top1_accuracy, static_cast<long long>(report.predictions));
  if (!report.comparison) return;
  const QualityComparison& c = *report.comparison;
  std::printf("\nagainst %s, %lld predictions:\n", c.reference.c_str(),
              static_cast<long long>(c.predictions));
  for (const std::string& line : c.description) std::printf("  (%s)\n", line.c_str());
  std::printf("  its mean NLL is %.6f, perplexity %.4f; here %+.6f (standard error %.6f)\n",
              c.mean_nll, c.perplexity, c.nll_difference, c.nll_difference_error);
  std::printf("  KL divergence: mean %.3e, largest %.3e after token %lld%s\n", c.mean_kl, c.max_kl,
              static_cast<long long>(c.max_kl_position),
              c.partial ? " (of the tokens that the reference names: lower bounds)" : "");
  std::printf("  same most likely token: %.3f %%\n", 100 * c.top1_agreement);
  std::printf("  largest shift of a %s: %.4g, after token %lld\n",
              c.partial ? "log probability" : "logit", c.max_shift,
              static_cast<long long>(c.max_shift_position));
}

int Quality(const QualityFlags& flags) {
  QualityOptions options;
  options.engine = ToEngineOptions(flags.model);
  options.against = ParseAgainst(flags);
  options.text = ReadTextFile(flags.text);
  options.max_tokens = flags.max_tokens;
  options.logits_path = flags.logits;
  options.scratch_path = ScratchPath(flags.scratch);
  for (const std::string& notice : EnvironmentNotices()) std::cerr << notice << "\n";
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (terminal) {
    options.on_progress = [](const std::string& run, int64_t done, int64_t total) {
      if (done % 64 != 0 && done != total) return;
      std::fprintf(stderr, "\r%s: %lld of %lld tokens %s", run.c_str(),
                   static_cast<long long>(done), static_cast<long long>(total),
                   done == total ? "\n" : "");
    };
  }
  CatchInterrupts();
  options.cancelled = [] { return InterruptSignal() != 0; };
  const QualityReport report = MeasureQuality(options);
  if (flags.json) {
    std::cout << DumpJson(ToJson(report)) << std::endl;
  } else {
    for (const std::string& line : report.description) std::cerr << line << "\n";
    Print(report);
  }
  return 0;
}

}  // namespace

void AddQualityCommand(CLI::App& app, int* status) {
  CLI::App* command =
      app.add_subcommand("quality", "How well the model predicts a text, and what a setting costs");
  auto flags = std::make_shared<QualityFlags>();
  command->add_option("--text", flags->text, "The text, or - for standard input")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--against", flags->against,
                   "Compare with the same model computed in another way (bf16, int8: the spine; "
                   "f32, cache=bf16: the latent cache; several with commas), with logits (run or "
                   "quality --logits), or with an API's answer about the end of the text (JSON "
                   "with logprobs)")
      ->type_name("WHAT");
  command->add_option("--tokens", flags->max_tokens, "Only the first N tokens of the text")
      ->type_name("N")
      ->transform(WholeNumber(2, int64_t{1} << 40));
  command
      ->add_option("--logits", flags->logits,
                   "Keep the logits: raw little-endian float32 [tokens, vocabulary]")
      ->type_name("FILE");
  command
      ->add_option("--scratch", flags->scratch,
                   "Folder for the reference's logits meanwhile, 4 bytes * vocabulary * tokens "
                   "(default: TMPDIR or /var/tmp)")
      ->type_name("DIR");
  command->add_flag("--json", flags->json, "One JSON object");
  AddModelOptions(*command, &flags->model);
  command->callback([flags, status] { *status = Quality(*flags); });
}

}  // namespace deltafin
