// The flags that say how the next token is chosen, and how guesses are used.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "deltafin/session.h"

namespace deltafin {

// Values of the flags; the ranges are checked by the engine.
struct SamplingFlags {
  SamplingOptions values;
  std::vector<std::string> logit_bias;  // "ID:VALUE"
  std::optional<uint64_t> seed;
  int64_t logprobs = 0;
  std::string spec = "auto";
};

void AddSamplingFlags(CLI::App& command, SamplingFlags* flags);

// --logprobs, for commands that report them.
void AddLogprobsFlag(CLI::App& command, SamplingFlags* flags);

// The longest draft that --spec allows, as EngineOptions::max_draft_tokens. Throws
// Error(kInvalidArgument).
int64_t MaxDraftTokens(const SamplingFlags& flags);

// Sets sampling, draft_tokens and top_logprobs. Without --seed every run gets a seed of its own;
// the options then say which. Throws Error(kInvalidArgument) naming the flag.
void ApplySamplingFlags(const SamplingFlags& flags, GenerateOptions* options);

}  // namespace deltafin
