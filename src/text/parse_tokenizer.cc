#include "text/parse_tokenizer.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <set>
#include <utility>

#include "base/format.h"
#include "deltafin/json.h"
#include "io/quote.h"

namespace deltafin {
namespace {

constexpr uint8_t kNotBase64 = 0xff;

constexpr std::array<uint8_t, 256> MakeBase64Values() {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<uint8_t, 256> values{};
  values.fill(kNotBase64);
  for (size_t i = 0; i < kDigits.size(); ++i) {
    values[static_cast<uint8_t>(kDigits[i])] = static_cast<uint8_t>(i);
  }
  return values;
}

constexpr std::array<uint8_t, 256> kBase64Values = MakeBase64Values();

// Appends the decoded bytes. False: not canonical base64 (RFC 4648 with padding, spare bits zero).
[[nodiscard]] bool DecodeBase64(std::string_view text, std::string& out) {
  if (text.size() % 4 != 0) return false;
  size_t num_digits = text.size();
  while (num_digits > 0 && text.size() - num_digits < 2 && text[num_digits - 1] == '=') {
    --num_digits;
  }
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text.substr(0, num_digits)) {
    const uint8_t value = kBase64Values[static_cast<uint8_t>(c)];
    if (value == kNotBase64) return false;
    bits = (bits << 6 | value) & 0xffff;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out += static_cast<char>(bits >> num_bits & 0xff);
    }
  }
  return (bits & ((1u << num_bits) - 1)) == 0;
}

constexpr size_t kMaxQuotedBytes = 40;

[[noreturn]] void BadLine(const std::string& name, size_t line, const std::string& what) {
  throw Error(
      ErrorCode::kCorrupt,
      format("{}:{}: {}. The file is damaged or is not a tiktoken vocabulary; fetch it again", name,
             line, what));
}

[[noreturn]] void BadConfig(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, format("{}: {}", name, what));
}

// One line "BASE64 RANK" whose rank must be `rank`.
void ParseLine(const std::string& name, std::string_view line, size_t rank, std::string& token) {
  const size_t line_number = rank + 1;
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) {
    BadLine(name, line_number,
            format("expected \"BASE64 RANK\", got {}", Quote(line, kMaxQuotedBytes)));
  }
  token.clear();
  if (!DecodeBase64(line.substr(0, space), token)) {
    BadLine(name, line_number,
            format("{} is not base64", Quote(line.substr(0, space), kMaxQuotedBytes)));
  }
  if (token.size() > kMaxTokenBytes) {
    BadLine(name, line_number,
            format("a token of {} bytes, expected at most {}", token.size(), kMaxTokenBytes));
  }
  if (line.substr(space + 1) != std::to_string(rank)) {
    BadLine(
        name, line_number,
        format("expected rank {}, got {}", rank, Quote(line.substr(space + 1), kMaxQuotedBytes)));
  }
}

void CheckDistinctAndComplete(const std::string& name, const TokenTable& tokens) {
  boost::unordered_flat_map<std::string_view, size_t, ShortBytesHash> ranks;
  ranks.reserve(tokens.size());
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const auto [it, inserted] = ranks.emplace(tokens[rank], rank);
    if (!inserted) {
      BadLine(name, rank + 1, format("the same token as on line {}", it->second + 1));
    }
  }
  for (int value = 0; value < 256; ++value) {
    const char byte = static_cast<char>(value);
    if (!ranks.contains(std::string_view(&byte, 1))) {
      BadLine(name, tokens.size(), format("the file ends and byte 0x{:02x} has no token", value));
    }
  }
}

}  // namespace

TokenTable ParseRanks(const NamedText& model) {
  TokenTable tokens;
  std::string token;
  for (size_t pos = 0; pos < model.text.size();) {
    const size_t end = std::min(model.text.find('\n', pos), model.text.size());
    ParseLine(model.name, model.text.substr(pos, end - pos), tokens.size(), token);
    tokens.Add(token);
    pos = end + 1;
  }
  CheckDistinctAndComplete(model.name, tokens);
  return tokens;
}

std::vector<std::string> ParseSpecials(const NamedText& config, TokenId num_ranks) {
  const Json json = ParseJson(config.text, config.name);
  const auto named = json.is_object() ? json.find("added_tokens_decoder") : json.end();
  if (named == json.end() || !named->is_object()) {
    BadConfig(config.name, "expected an object \"added_tokens_decoder\" with the special tokens");
  }
  std::vector<std::string> spellings(kNumSpecials);
  for (const auto& [key, value] : named->items()) {
    TokenId id = kNoToken;
    const auto [rest, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || rest != key.data() + key.size() || id < num_ranks ||
        id >= num_ranks + kNumSpecials) {
      BadConfig(config.name,
                format("added_tokens_decoder has the id {}, expected {}..{} (the ids "
                       "after the tokens of tiktoken.model); do both files belong "
                       "to the same model?",
                       Quote(key, kMaxQuotedBytes), num_ranks, num_ranks + kNumSpecials - 1));
    }
    const auto content = value.is_object() ? value.find("content") : value.end();
    if (content == value.end() || !content->is_string() || content->get<std::string>().empty()) {
      BadConfig(config.name, format("added_tokens_decoder[{}] has no \"content\", expected the "
                                    "spelling of the token",
                                    Quote(key, kMaxQuotedBytes)));
    }
    spellings[static_cast<size_t>(id - num_ranks)] = content->get<std::string>();
  }
  std::set<std::string_view> seen;
  for (TokenId i = 0; i < kNumSpecials; ++i) {
    std::string& spelling = spellings[static_cast<size_t>(i)];
    if (spelling.empty()) spelling = format("<|reserved_token_{}|>", num_ranks + i);
    if (!seen.insert(spelling).second) {
      BadConfig(config.name,
                format("two special tokens are spelled {}", Quote(spelling, kMaxQuotedBytes)));
    }
  }
  return spellings;
}

}  // namespace deltafin
