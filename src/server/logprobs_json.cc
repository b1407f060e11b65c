#include "server/logprobs_json.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace deltafin {
namespace {

// JSON has no word for minus infinity; OpenAI's has this number.
constexpr double kLeast = -9999.0;

// Half a character has no spelling in JSON: its bytes come as U+FFFD.
std::string Spelling(std::string_view bytes) {
  StreamDecoder decoder;
  std::string text = decoder.Push(bytes);
  return text + decoder.Finish();
}

Json TokenJson(const Tokenizer& tokenizer, TokenId id, double logprob) {
  const std::string_view bytes = tokenizer.Bytes(id);
  Json values = Json::array();
  for (const char c : bytes) values.push_back(static_cast<unsigned char>(c));
  return {{"token", Spelling(bytes)},
          {"logprob", std::max(logprob, kLeast)},
          {"bytes", std::move(values)}};
}

}  // namespace

Json ChatLogprobs(const Tokenizer& tokenizer, const std::vector<ShownToken>& tokens) {
  Json content = Json::array();
  for (const ShownToken& token : tokens) {
    const PositionLogprobs logprobs = token.logprobs.value_or(PositionLogprobs());
    Json top = Json::array();
    for (const TokenLogprob& entry : logprobs.top) {
      top.push_back(TokenJson(tokenizer, entry.id, entry.logprob));
    }
    Json json = TokenJson(tokenizer, token.id, logprobs.chosen);
    json["top_logprobs"] = std::move(top);
    content.push_back(std::move(json));
  }
  return content;
}

Json CompletionLogprobs(const Tokenizer& tokenizer, const std::vector<ShownToken>& tokens) {
  Json spellings = Json::array();
  Json chosen = Json::array();
  Json top = Json::array();
  Json offsets = Json::array();
  for (const ShownToken& token : tokens) {
    spellings.push_back(Spelling(tokenizer.Bytes(token.id)));
    offsets.push_back(token.text_offset);
    if (!token.logprobs) {
      chosen.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    chosen.push_back(std::max(token.logprobs->chosen, kLeast));
    // Tokens that look alike (halves of characters) would be one key: the likelier one stays.
    Json entries = Json::object();
    for (const TokenLogprob& entry : token.logprobs->top) {
      const std::string key = Spelling(tokenizer.Bytes(entry.id));
      if (!entries.contains(key)) entries[key] = std::max(entry.logprob, kLeast);
    }
    top.push_back(std::move(entries));
  }
  return {{"tokens", std::move(spellings)},
          {"token_logprobs", std::move(chosen)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace deltafin
