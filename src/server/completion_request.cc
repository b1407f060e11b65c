#include "server/completion_request.h"

#include <algorithm>

#include "base/format.h"
#include "server/api_error.h"

namespace deltafin {
namespace {

// A text without an end of its own would fill the context.
constexpr int64_t kDefaultNewTokens = 256;
constexpr size_t kMaxPrompts = 64;

bool IsTokenIds(const Json& value) {
  return value.is_array() && !value.empty() && value.front().is_number();
}

std::vector<TokenId> ReadPrompt(const Json& value, const std::string& path,
                                const RequestLimits& limits) {
  if (IsTokenIds(value)) return ReadTokenIds(value, path, limits);
  if (!value.is_string()) {
    throw ApiError(400, path + ": expected a text or an array of token ids", path);
  }
  std::vector<TokenId> ids =
      limits.tokenizer->Encode(value.get_ref<const std::string&>(), Specials::kPlain);
  if (ids.empty()) {
    throw ApiError(400, path + ": expected at least one token: nothing is put before a prompt",
                   path);
  }
  return ids;
}

std::vector<std::vector<TokenId>> ReadPrompts(JsonFields* fields, const RequestLimits& limits) {
  const Json* prompt = fields->Find("prompt");
  if (prompt == nullptr) fields->Bad("prompt", "a text, token ids, or an array of either");
  if (!prompt->is_array() || IsTokenIds(*prompt)) return {ReadPrompt(*prompt, "prompt", limits)};
  if (prompt->empty() || prompt->size() > kMaxPrompts) {
    fields->Bad("prompt", format("1 to {} prompts", kMaxPrompts));
  }
  std::vector<std::vector<TokenId>> prompts;
  for (size_t i = 0; i < prompt->size(); ++i) {
    prompts.push_back(ReadPrompt((*prompt)[i], format("prompt[{}]", i), limits));
  }
  return prompts;
}

void RefuseOthers(JsonFields* fields, int64_t num_choices) {
  if (const auto suffix = fields->String("suffix"); suffix && !suffix->empty()) {
    fields->Refuse("suffix", "the model goes on with a text, it does not fill gaps");
  }
  if (const auto best = fields->Int("best_of", 1, INT32_MAX); best && *best != num_choices) {
    fields->Bad("best_of", "the same as n: all answers are returned");
  }
  fields->Refuse("response_format", "only chat completions can be held to a format");
  fields->Refuse("tools", "only chat completions have tools");
}

}  // namespace

std::vector<TokenId> ReadTokenIds(const Json& ids, const std::string& path,
                                  const RequestLimits& limits) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Json& id = ids[i];
    if (!id.is_number_integer() || id < 0 || id >= limits.tokenizer->vocab_size()) {
      throw ApiError(400,
                     format("{}[{}]: expected a token id from 0 to {}", path, i,
                            limits.tokenizer->vocab_size() - 1),
                     path);
    }
    tokens.push_back(id.get<TokenId>());
  }
  return tokens;
}

CompletionRequest ReadCompletionRequest(const std::string& body, const RequestLimits& limits) {
  const Json json = ParseRequestBody(body);
  JsonFields fields(json, "");
  CompletionRequest request;
  request.generation = ReadGenerationFields(&fields, limits);
  request.echo = fields.Bool("echo").value_or(false);
  request.stop_at_stop_tokens = !fields.Bool("ignore_eos").value_or(false);
  request.top_logprobs = fields.Int("logprobs", 0, 20).value_or(-1);
  const std::optional<int64_t> max_tokens =
      ReadMaxTokens(&fields, "max_tokens", request.echo ? 0 : 1, limits);
  RefuseOthers(&fields, request.generation.num_choices);
  request.prompts = ReadPrompts(&fields, limits);
  CheckNumAnswers(std::ssize(request.prompts) * request.generation.num_choices, "prompt", limits);
  for (const std::vector<TokenId>& prompt : request.prompts) {
    request.max_new_tokens.push_back(
        NewTokens(max_tokens, kDefaultNewTokens, static_cast<int64_t>(prompt.size()), limits));
  }
  request.ignored = fields.unknown();
  return request;
}

}  // namespace deltafin
