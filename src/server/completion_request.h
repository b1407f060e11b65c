// POST /v1/completions: the body, checked.
#pragma once

#include <string>
#include <vector>

#include "server/generation_fields.h"

namespace deltafin {

struct CompletionRequest {
  GenerationFields generation;
  std::vector<std::vector<TokenId>> prompts;  // each gets num_choices answers
  std::vector<int64_t> max_new_tokens;        // of each prompt
  int64_t top_logprobs = -1;                  // as Job
  bool echo = false;
  bool stop_at_stop_tokens = true;
  std::vector<std::string> ignored;
};

// Throws ApiError.
CompletionRequest ReadCompletionRequest(const std::string& body, const RequestLimits& limits);

// An array of token ids in the field, each inside of the vocabulary.
std::vector<TokenId> ReadTokenIds(const Json& ids, const std::string& path,
                                  const RequestLimits& limits);

}  // namespace deltafin
