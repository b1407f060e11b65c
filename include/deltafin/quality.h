// How well a model predicts a text, and how far its predictions are from a reference.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deltafin/engine.h"

namespace deltafin {

// Predictions to compare with: one of the three, or none.
struct QualityReference {
  std::optional<EngineOptions> engine;  // a model of the same vocabulary, computed by this program
  std::string logits_path;              // raw little-endian float32 [tokens, vocab_size]
  // What an OpenAI-style API answered about the end of the text: a JSON object with
  // choices[0].logprobs of chat ("content") or of completions ("tokens").
  std::string logprobs_path;
  std::string name;  // what the report calls it
};

struct QualityOptions {
  // context_tokens: the text is read in windows of so many tokens, each an empty session; 0: 8,192.
  EngineOptions engine;
  std::string text;
  int64_t max_tokens = 0;  // only the first of the text; 0: all
  QualityReference against;
  // Where the logits of against.engine lie meanwhile, 4 * vocab_size bytes for each token; removed
  // at the end.
  std::string scratch_path;
  std::string logits_path;  // "": the logits are not kept; else as QualityReference::logits_path
  // Hears how many tokens of which run are done, after every one.
  std::function<void(const std::string& run, int64_t done, int64_t total)> on_progress;
  std::function<bool()> cancelled;  // asked between layers
};

// Over the predictions that both have. Natural logarithms.
struct QualityComparison {
  std::string reference;
  std::vector<std::string> description;  // Engine::Describe, if it was computed
  int64_t predictions = 0;
  double mean_nll = 0;  // of the reference
  double perplexity = 0;
  double nll_difference = 0;        // of the means, measured - reference
  double nll_difference_error = 0;  // its standard error
  double mean_kl = 0;               // of the reference's distributions from the measured ones
  double max_kl = 0;
  int64_t max_kl_position = 0;  // index of the token after which it is
  double top1_agreement = 0;    // part of the predictions where both have the same likeliest token
  double max_shift = 0;         // largest change of a logit
  int64_t max_shift_position = 0;
  // The reference knows a few tokens of each distribution. The others count as one token: the
  // divergences are lower bounds; and the shift is one of log probabilities.
  bool partial = false;
};

struct QualityReport {
  std::vector<std::string> description;  // Engine::Describe
  int64_t tokens = 0;
  int64_t windows = 0;
  int64_t predictions = 0;  // tokens but the first of each window
  double mean_nll = 0;      // nats for each of them
  double perplexity = 0;    // e^mean_nll
  double bits_per_byte = 0;
  double top1_accuracy = 0;  // part of the predictions whose likeliest token came
  double seconds = 0;        // of the measured run
  std::optional<QualityComparison> comparison;
};

// Memory: the engine's plan, and a row of logits or two. Throws Error.
QualityReport MeasureQuality(const QualityOptions& options);

}  // namespace deltafin
