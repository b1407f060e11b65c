#include "text/parse_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "deltafin/error.h"

namespace deltafin {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      const bool padding = i + j > bytes.size();
      out += padding ? '=' : kDigits[bits >> (18 - 6 * j) & 0x3f];
    }
  }
  return out;
}

// Lines for the 256 single bytes and for `extra`.
std::vector<std::string> ModelLines(const std::vector<std::string>& extra = {}) {
  std::vector<std::string> lines;
  const auto add = [&](std::string_view token) {
    lines.push_back(Base64(token) + " " + std::to_string(lines.size()));
  };
  for (int i = 0; i < 256; ++i) add(std::string(1, static_cast<char>(i)));
  for (const std::string& token : extra) add(token);
  return lines;
}

std::string Join(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

std::string ConfigWith(const std::string& members) {
  return R"({"added_tokens_decoder": {)" + members + "}}";
}

constexpr char kNoSpecials[] = R"({"added_tokens_decoder": {}})";

std::unique_ptr<Tokenizer> Parse(const std::string& model, const std::string& config) {
  return ParseTokenizer({model, "dir/tiktoken.model"}, {config, "dir/tokenizer_config.json"});
}

// The message of the one kCorrupt error.
std::string ErrorOf(const std::string& model, const std::string& config = kNoSpecials) {
  try {
    Parse(model, config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(ParseRanks, ReadsTokensOfEveryLengthInOrder) {
  const std::vector<std::string> extra = {"ab", "abc", "abcd", std::string("\0\xff\n ", 4),
                                          std::string(kMaxTokenBytes, 'x')};
  const std::string model = Join(ModelLines(extra));
  const TokenTable tokens = ParseRanks({model, "m"});
  ASSERT_EQ(tokens.size(), 261u);
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(tokens[i], std::string(1, static_cast<char>(i)));
  for (size_t i = 0; i < extra.size(); ++i) EXPECT_EQ(tokens[256 + i], extra[i]);
  // The last line may lack its line end.
  EXPECT_EQ(ParseRanks({std::string_view(model).substr(0, model.size() - 1), "m"}).size(), 261u);
}

TEST(ParseRanks, EveryMalformedLineIsOneErrorWithFileAndLine) {
  struct Case {
    size_t line;  // 1-based
    std::string text;
    std::string message;
  };
  const std::vector<Case> cases = {
      {1, "", "expected \"BASE64 RANK\""},
      {5, "BA==", "expected \"BASE64 RANK\""},
      {5, " 4", "expected \"BASE64 RANK\""},
      {5, "B 4", "is not base64"},
      {5, "BA=4 4", "is not base64"},
      {5, "BA 4", "is not base64"},
      {5, "==== 4", "is not base64"},
      {5, "BA== 4 ", "expected rank 4"},
      {5, "BB== 4", "is not base64"},  // spare bits set
      {5, "B*== 4", "is not base64"},
      {5, "B\xff== 4", "is not base64"},
      {5, "BA== 5", "expected rank 4, got \"5\""},
      {5, "BA== 04", "expected rank 4"},
      {5, "BA== -4", "expected rank 4"},
      {5, "BA== 4x", "expected rank 4"},
      {5, "BA==  4", "expected rank 4"},
      {5, "BA== 4\r", "expected rank 4"},
      {5, "BA== 99999999999999999999", "expected rank 4"},
      {5, "BA== ", "expected rank 4"},
      {5, "AA== 4", "the same token as on line 1"},
      {257, Base64(std::string(kMaxTokenBytes + 1, 'x')) + " 256", "a token of 1025 bytes"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> lines = ModelLines({"ab"});
    lines[c.line - 1] = c.text;
    const std::string message = ErrorOf(Join(lines));
    EXPECT_THAT(message, StartsWith("dir/tiktoken.model:" + std::to_string(c.line) + ": "));
    EXPECT_THAT(message, HasSubstr(c.message)) << c.text;
  }
}

TEST(ParseRanks, MissingBytesAndEmptyFiles) {
  std::vector<std::string> lines = ModelLines();
  lines.pop_back();
  EXPECT_THAT(ErrorOf(Join(lines)), HasSubstr(":255: the file ends and byte 0xff has no token"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("byte 0x00 has no token"));
  EXPECT_THAT(ErrorOf(Join(ModelLines()) + "\n"), StartsWith("dir/tiktoken.model:257: "));
  EXPECT_THAT(ErrorOf("\x7f"
                      "ELF\n"),
              HasSubstr("expected \"BASE64 RANK\""));
}

TEST(ParseSpecials, NamesAndReservedOnes) {
  const auto tokenizer = Parse(
      Join(ModelLines({"ab"})),
      ConfigWith(R"("257": {"content": "[BOS]", "special": true}, "512": {"content": "[PAD]"})"));
  EXPECT_EQ(tokenizer->vocab_size(), 513);
  EXPECT_EQ(tokenizer->Bytes(256), "ab");
  EXPECT_EQ(tokenizer->Bytes(257), "[BOS]");
  EXPECT_EQ(tokenizer->Bytes(258), "<|reserved_token_258|>");
  EXPECT_EQ(tokenizer->Bytes(512), "[PAD]");
  EXPECT_EQ(tokenizer->SpecialId("[PAD]"), 512);
  EXPECT_EQ(tokenizer->SpecialId("<|reserved_token_300|>"), 300);
  EXPECT_FALSE(tokenizer->IsSpecial(256));
  EXPECT_TRUE(tokenizer->IsSpecial(257));
  EXPECT_TRUE(tokenizer->IsSpecial(512));
  EXPECT_FALSE(tokenizer->IsSpecial(513));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
}

TEST(ParseSpecials, MalformedConfigIsOneError) {
  const std::string model = Join(ModelLines());
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "tokenizer_config.json"},
      {"[]", "added_tokens_decoder"},
      {"{}", "added_tokens_decoder"},
      {R"({"added_tokens_decoder": []})", "added_tokens_decoder"},
      {ConfigWith(R"("255": {"content": "x"})"), "expected 256..511"},
      {ConfigWith(R"("512": {"content": "x"})"), "expected 256..511"},
      {ConfigWith(R"("x": {"content": "x"})"), "expected 256..511"},
      {ConfigWith(R"("": {"content": "x"})"), "expected 256..511"},
      {ConfigWith(R"("256 ": {"content": "x"})"), "expected 256..511"},
      {ConfigWith(R"("99999999999": {"content": "x"})"), "expected 256..511"},
      {ConfigWith(R"("256": "x")"), "no \"content\""},
      {ConfigWith(R"("256": {})"), "no \"content\""},
      {ConfigWith(R"("256": {"content": 1})"), "no \"content\""},
      {ConfigWith(R"("256": {"content": ""})"), "no \"content\""},
      {ConfigWith(R"("256": {"content": "x"}, "257": {"content": "x"})"), "two special tokens"},
      {ConfigWith(R"("256": {"content": "<|reserved_token_300|>"})"), "two special tokens"},
  };
  for (const auto& [config, message] : cases) {
    const std::string got = ErrorOf(model, config);
    EXPECT_THAT(got, HasSubstr("dir/tokenizer_config.json")) << config;
    EXPECT_THAT(got, HasSubstr(message)) << config;
  }
}

// Where spellings overlap the leftmost wins, then the longest.
TEST(Specials, LeftmostThenLongest) {
  const auto tokenizer = Parse(
      Join(ModelLines()), ConfigWith(R"("256": {"content": "<a>"}, "257": {"content": "<a><b>"},
                                        "258": {"content": "b><"}, "259": {"content": "\u00e9!"})"));
  const auto encode = [&](std::string_view text) {
    return tokenizer->Encode(text, Specials::kAllowed);
  };
  using Tokens = std::vector<TokenId>;
  EXPECT_EQ(encode("<a>"), Tokens{256});
  EXPECT_EQ(encode("<a><b>"), Tokens{257});
  EXPECT_EQ(encode("<a><b"), (Tokens{256, '<', 'b'}));
  EXPECT_EQ(encode("<a>b><a>"), (Tokens{256, 258, 'a', '>'}));
  EXPECT_EQ(encode("<<a>>"), (Tokens{'<', 256, '>'}));
  EXPECT_EQ(encode("\u00e9!x"), (Tokens{259, 'x'}));
  EXPECT_EQ(encode("<|reserved_token_511|>"), Tokens{511});
  EXPECT_EQ(tokenizer->Encode("<a>", Specials::kPlain), (Tokens{'<', 'a', '>'}));
}

}  // namespace
}  // namespace deltafin
