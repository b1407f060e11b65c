#include "server/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <random>

#include "base/format.h"
#include "server/api_error.h"

namespace deltafin {
namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;

void CheckModel(JsonFields* fields, const RequestLimits& limits) {
  const std::optional<std::string> model = fields->String("model");
  const std::vector<std::string>& names = limits.model_names;
  if (!model || std::find(names.begin(), names.end(), *model) != names.end()) return;
  throw ApiError(404, "model: this server has \"" + names.front() + "\" (GET /v1/models)", "model",
                 "model_not_found");
}

std::vector<std::string> ReadStops(JsonFields* fields) {
  const Json* value = fields->Find("stop");
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<std::string> stops;
  for (const Json& item : list) {
    const bool good = item.is_string() && !item.get_ref<const std::string&>().empty() &&
                      item.get_ref<const std::string&>().size() <= kMaxStopBytes;
    if (!good || stops.size() == kMaxStops) {
      fields->Bad("stop", "a string or at most 16 strings, each of 1 to 1024 bytes");
    }
    stops.push_back(item.get<std::string>());
  }
  return stops;
}

void ReadBias(JsonFields* fields, const RequestLimits& limits, SamplingOptions* sampling) {
  const Json* bias = fields->Object("logit_bias");
  if (bias == nullptr) return;
  const TokenId vocab_size = limits.tokenizer->vocab_size();
  for (const auto& [key, value] : bias->items()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool good = error == std::errc() && end == key.data() + key.size() && id >= 0 &&
                      id < vocab_size && std::to_string(id) == key && value.is_number() &&
                      value.get<double>() >= -100 && value.get<double>() <= 100;
    if (!good) {
      fields->Bad("logit_bias", "token ids below " + std::to_string(vocab_size) +
                                    " with numbers from -100 to 100");
    }
    sampling->logit_bias.emplace_back(id, value.get<double>());
  }
}

uint64_t ReadSeed(JsonFields* fields) {
  const std::optional<int64_t> seed = fields->Int("seed", INT64_MIN, INT64_MAX);
  if (seed) return static_cast<uint64_t>(*seed);
  return std::random_device{}();
}

SamplingOptions ReadSampling(JsonFields* fields, const RequestLimits& limits) {
  SamplingOptions sampling;
  sampling.temperature = fields->Number("temperature", 0, 100).value_or(0);
  if (sampling.temperature > 0 && sampling.temperature < 0.001) {
    fields->Bad("temperature", "0 (always the most likely token) or at least 0.001");
  }
  sampling.top_p = fields->Number("top_p", 0, 1).value_or(1);
  if (sampling.top_p == 0) fields->Bad("top_p", "more than 0 and at most 1");
  sampling.min_p = fields->Number("min_p", 0, 1).value_or(0);
  if (sampling.min_p == 1) fields->Bad("min_p", "at least 0 and less than 1");
  // Other servers say -1 for all tokens.
  sampling.top_k = std::max<int64_t>(0, fields->Int("top_k", -1, INT32_MAX).value_or(0));
  sampling.presence_penalty = fields->Number("presence_penalty", -100, 100).value_or(0);
  sampling.frequency_penalty = fields->Number("frequency_penalty", -100, 100).value_or(0);
  sampling.repetition_penalty = fields->Number("repetition_penalty", 0.01, 100).value_or(1);
  ReadBias(fields, limits, &sampling);
  sampling.seed = ReadSeed(fields);
  return sampling;
}

}  // namespace

GenerationFields ReadGenerationFields(JsonFields* fields, const RequestLimits& limits) {
  CheckModel(fields, limits);
  GenerationFields values;
  values.num_choices = fields->Int("n", 1, limits.max_choices).value_or(1);
  CheckNumAnswers(values.num_choices, "n", limits);
  values.stream = fields->Bool("stream").value_or(false);
  if (const Json* options = fields->Object("stream_options"); options != nullptr) {
    if (!values.stream) fields->Bad("stream_options", "nothing without \"stream\": true");
    JsonFields inner(*options, "stream_options");
    values.include_usage = inner.Bool("include_usage").value_or(false);
    fields->AddUnknownOf(inner);
  }
  values.stop = ReadStops(fields);
  values.sampling = ReadSampling(fields, limits);
  // These say who asks, or how it is paid for; no answer depends on them.
  for (const char* name :
       {"user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention"}) {
    fields->Accept(name);
  }
  return values;
}

void CheckNumAnswers(int64_t answers, const char* name, const RequestLimits& limits) {
  if (limits.max_answers == 0 || answers <= limits.max_answers) return;
  throw ApiError(400,
                 format("{}: expected a request of at most {} answers, which is what this server "
                        "computes and lets wait (--parallel, --queue), got {}",
                        name, limits.max_answers, answers),
                 name);
}

std::optional<int64_t> ReadMaxTokens(JsonFields* fields, const char* name, int64_t min,
                                     const RequestLimits& limits) {
  const std::optional<int64_t> tokens = fields->Int(name, min, INT64_MAX);
  if (tokens && limits.max_new_tokens > 0 && *tokens > limits.max_new_tokens) {
    fields->Bad(name, "at most " + std::to_string(limits.max_new_tokens) +
                          ", the limit of this server (--max-tokens)");
  }
  return tokens;
}

int64_t NewTokens(const std::optional<int64_t>& wanted, int64_t without, int64_t prompt_tokens,
                  const RequestLimits& limits) {
  const int64_t room = limits.context_tokens - prompt_tokens;
  if (room < std::min<int64_t>(1, wanted.value_or(without))) {  // 0: only scores the prompt
    throw ApiError(400,
                   "the prompt has " + std::to_string(prompt_tokens) +
                       " tokens, and the context of this server " +
                       std::to_string(limits.context_tokens) +
                       " for prompt and answer together (--context)",
                   "", "context_length_exceeded");
  }
  int64_t tokens = std::min(wanted.value_or(without), room);
  if (limits.max_new_tokens > 0) tokens = std::min(tokens, limits.max_new_tokens);
  return tokens;
}

uint64_t SeedOfChoice(uint64_t seed, int64_t choice) {
  return seed + static_cast<uint64_t>(choice) * 0x9e3779b97f4a7c15ull;
}

}  // namespace deltafin
