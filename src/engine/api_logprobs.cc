#include "engine/api_logprobs.h"

#include <unordered_map>

#include "base/format.h"
#include "deltafin/error.h"
#include "deltafin/json.h"

namespace deltafin {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // half a character, as JSON spells it

class Parser {
 public:
  Parser(const std::string& name, const Tokenizer& tokenizer) : name_(name), tokenizer_(tokenizer) {
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      ids_.try_emplace(std::string(tokenizer.Bytes(id)), id);
    }
  }

  std::vector<std::optional<PositionLogprobs>> Parse(const Json& answer,
                                                     std::span<const TokenId> tokens) {
    const Json* const choices = Member(answer, "choices");
    const Json* const logprobs = choices != nullptr && choices->is_array() && !choices->empty()
                                     ? Member((*choices)[0], "logprobs")
                                     : nullptr;
    if (logprobs == nullptr || !logprobs->is_object()) Refuse("choices[0].logprobs is missing");
    const Json* const content = Member(*logprobs, "content");
    return content != nullptr ? ParseChat(*content, tokens) : ParseCompletion(*logprobs, tokens);
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    throw Error(ErrorCode::kCorrupt,
                format("{}: {}; expected the answer of an OpenAI-style API that was asked for log "
                       "probabilities",
                       name_, why));
  }

  static const Json* Member(const Json& object, const char* key) {
    if (!object.is_object()) return nullptr;
    const auto it = object.find(key);
    return it == object.end() ? nullptr : &*it;
  }

  double Number(const Json& object, const char* key) const {
    const Json* const value = Member(object, key);
    if (value == nullptr || !value->is_number()) Refuse(format("a \"{}\" is missing", key));
    return value->get<double>();
  }

  // The tokens that the answer is about.
  std::span<const TokenId> End(std::span<const TokenId> tokens, const Json& list) const {
    if (!list.is_array() || list.empty()) Refuse("there is no list of tokens");
    if (list.size() > tokens.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("{}: {} tokens, but the text has {}", name_, list.size(), tokens.size()));
    }
    return tokens.last(list.size());
  }

  void CheckToken(size_t at, const std::string& bytes, TokenId expected) const {
    if (bytes == tokenizer_.Bytes(expected) || bytes.find(kReplacement) != std::string::npos) {
      return;
    }
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: token {} is {}, but the text has {} there; the text must end with what "
                       "the answer is about",
                       name_, at, Json(bytes).dump(-1, ' ', true, Json::error_handler_t::replace),
                       Json(std::string(tokenizer_.Bytes(expected)))
                           .dump(-1, ' ', true, Json::error_handler_t::replace)));
  }

  std::string BytesOf(const Json& entry) const {
    if (const Json* bytes = Member(entry, "bytes"); bytes != nullptr && bytes->is_array()) {
      std::string text;
      for (const Json& byte : *bytes) {
        if (!byte.is_number_integer()) Refuse("a list of bytes holds something else");
        text += static_cast<char>(byte.get<int64_t>());
      }
      return text;
    }
    const Json* const token = Member(entry, "token");
    if (token == nullptr || !token->is_string()) Refuse("a \"token\" is missing");
    return token->get<std::string>();
  }

  void AddTop(PositionLogprobs* position, const std::string& bytes, double logprob) const {
    const auto it = ids_.find(bytes);
    if (it != ids_.end()) position->top.push_back({it->second, logprob});
  }

  std::vector<std::optional<PositionLogprobs>> ParseChat(const Json& content,
                                                         std::span<const TokenId> tokens) const {
    tokens = End(tokens, content);
    std::vector<std::optional<PositionLogprobs>> positions;
    for (const Json& entry : content) {
      CheckToken(positions.size(), BytesOf(entry), tokens[positions.size()]);
      PositionLogprobs position;
      position.chosen = Number(entry, "logprob");
      if (const Json* top = Member(entry, "top_logprobs"); top != nullptr && top->is_array()) {
        for (const Json& other : *top) AddTop(&position, BytesOf(other), Number(other, "logprob"));
      }
      positions.emplace_back(std::move(position));
    }
    return positions;
  }

  std::vector<std::optional<PositionLogprobs>> ParseCompletion(
      const Json& logprobs, std::span<const TokenId> tokens) const {
    const Json* const texts = Member(logprobs, "tokens");
    const Json* const chosen = Member(logprobs, "token_logprobs");
    const Json* const tops = Member(logprobs, "top_logprobs");
    if (texts == nullptr || chosen == nullptr || !chosen->is_array()) {
      Refuse("neither \"content\" nor \"tokens\" and \"token_logprobs\" are there");
    }
    tokens = End(tokens, *texts);
    if (chosen->size() != tokens.size())
      Refuse("there are not as many log probabilities as tokens");
    std::vector<std::optional<PositionLogprobs>> positions(tokens.size());
    for (size_t at = 0; at < tokens.size(); ++at) {
      if (!(*texts)[at].is_string()) Refuse("a token is no text");
      CheckToken(at, (*texts)[at].get<std::string>(), tokens[at]);
      if ((*chosen)[at].is_null()) continue;
      if (!(*chosen)[at].is_number()) Refuse("a log probability is no number");
      PositionLogprobs& position = positions[at].emplace();
      position.chosen = (*chosen)[at].get<double>();
      if (tops == nullptr || !tops->is_array() || at >= tops->size()) continue;
      const Json& top = (*tops)[at];
      if (!top.is_object()) continue;
      for (const auto& [text, logprob] : top.items()) {
        if (!logprob.is_number()) Refuse("a log probability is no number");
        AddTop(&position, text, logprob.get<double>());
      }
    }
    return positions;
  }

  const std::string& name_;
  const Tokenizer& tokenizer_;
  std::unordered_map<std::string, TokenId> ids_;
};

}  // namespace

std::vector<std::optional<PositionLogprobs>> ParseApiLogprobs(std::string_view json,
                                                              const std::string& name,
                                                              const Tokenizer& tokenizer,
                                                              std::span<const TokenId> tokens) {
  return Parser(name, tokenizer).Parse(ParseJson(json, name), tokens);
}

}  // namespace deltafin
