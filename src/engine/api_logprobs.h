// Log probabilities as OpenAI-style APIs answer them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/sampling.h"
#include "deltafin/tokenizer.h"

namespace deltafin {

// What the answer says about the last tokens of a text, token by token; nothing where it gives none
// (the first token of an echoed prompt). `json` is an object with choices[0].logprobs:
//   chat:         content: [{token, logprob, bytes?, top_logprobs: [{token, logprob, bytes?}]}]
//   completions:  tokens: [text], token_logprobs: [number or null], top_logprobs: [{text: number}]
// Its tokens must be the end of `tokens`; entries of other vocabularies are left out of `top`.
// Throws Error(kCorrupt) for another form, Error(kInvalidArgument) for other tokens; `name` is what
// messages call it.
std::vector<std::optional<PositionLogprobs>> ParseApiLogprobs(std::string_view json,
                                                              const std::string& name,
                                                              const Tokenizer& tokenizer,
                                                              std::span<const TokenId> tokens);

}  // namespace deltafin
