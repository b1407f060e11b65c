// How the next token is chosen from the logits (docs/decoding.md says what each number does).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "deltafin/types.h"

namespace deltafin {

// The defaults take the most likely token. The choice is a function of these options, the text so
// far and the logits: the same seed gives the same text, however the work is divided.
struct SamplingOptions {
  double temperature = 0;         // 0: the highest logit (lowest id on ties); else >= 0.001
  int64_t top_k = 0;              // keep this many tokens; 0: all
  double top_p = 1;               // keep the most likely tokens that have this probability; (0, 1]
  double min_p = 0;               // keep tokens with this part of the highest probability; [0, 1)
  double repetition_penalty = 1;  // of tokens anywhere in the text; [0.01, 100]
  double presence_penalty = 0;    // of tokens generated so far; [-100, 100]
  double frequency_penalty = 0;   // the same, times how often; [-100, 100]
  std::vector<std::pair<TokenId, double>> logit_bias;  // [-100, 100]; an id at most once
  uint64_t seed = 0;
};

struct TokenLogprob {
  TokenId id = 0;
  double logprob = 0;  // natural logarithm of the probability
};

// The model's own distribution (temperature 1, nothing filtered) where one token was chosen.
struct PositionLogprobs {
  double chosen = 0;              // of the token that was taken
  std::vector<TokenLogprob> top;  // most likely first, lowest id first on ties
};

}  // namespace deltafin
