// The fields that chat and plain completions share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deltafin/sampling.h"
#include "deltafin/tokenizer.h"
#include "server/json_fields.h"

namespace deltafin {

// What a request is checked against.
struct RequestLimits {
  std::vector<std::string> model_names;  // the first is what answers say
  const Tokenizer* tokenizer = nullptr;
  int64_t context_tokens = 0;
  int64_t max_new_tokens = 0;  // ceiling of every request; 0: none
  int64_t max_choices = 16;
  int64_t max_answers = 0;  // of a request: as many as can run and wait at once; 0: no limit
};

struct GenerationFields {
  int64_t num_choices = 1;
  bool stream = false;
  bool include_usage = false;
  std::vector<std::string> stop;
  SamplingOptions sampling;  // of the first choice
  int64_t draft_tokens = kAutoDraft;
};

// Throws ApiError: 400, and 404 for a model that is not served.
GenerationFields ReadGenerationFields(JsonFields* fields, const RequestLimits& limits);

// Refuses a request with more answers than there can ever be room for: field `name` asks for them.
void CheckNumAnswers(int64_t answers, const char* name, const RequestLimits& limits);

// A number of new tokens; what is above the server's ceiling is refused.
std::optional<int64_t> ReadMaxTokens(JsonFields* fields, const char* name, int64_t min,
                                     const RequestLimits& limits);

// The number of tokens that may be generated after a prompt.
int64_t NewTokens(const std::optional<int64_t>& wanted, int64_t without, int64_t prompt_tokens,
                  const RequestLimits& limits);

// The seed of one of several choices: the first has the request's.
uint64_t SeedOfChoice(uint64_t seed, int64_t choice);

}  // namespace deltafin
