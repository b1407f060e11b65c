#include "server/answer_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "chat_elements.h"
#include "deltafin/chat.h"
#include "server/schema_test_util.h"

namespace deltafin {
namespace {

// A text in which control tokens are spelled.
bool Accepts(const ShapeOptions& options, const std::string& text) {
  AnswerShape shape(std::make_shared<const ShapeOptions>(options));
  const std::vector<std::pair<std::string, int>> kMarks = {{"<|open|>", kOpenSymbol},
                                                           {"<|close|>", kCloseSymbol},
                                                           {"<|sep|>", kSepSymbol},
                                                           {"<|end_of_msg|>", kEndSymbol},
                                                           {"[EOS]", kOtherSymbol}};
  for (size_t i = 0; i < text.size();) {
    int symbol = static_cast<unsigned char>(text[i]);
    size_t length = 1;
    for (const auto& [spelling, mark] : kMarks) {
      if (text.compare(i, spelling.size(), spelling) != 0) continue;
      symbol = mark;
      length = spelling.size();
    }
    if (!shape.Push(symbol)) return false;
    i += length;
  }
  return true;
}

const std::string kHm = "hm" + Close("think") + Open("response");
const std::string kMessageEnd = Close("message") + "<|end_of_msg|>";

std::string Call(const std::string& name, int index, const std::string& arguments) {
  return Open("call tool=\"" + name + "\" index=\"" + std::to_string(index) + "\"") + arguments +
         Close("call");
}
std::string Tools(const std::string& calls) { return Open("tools") + calls + Close("tools"); }

int64_t NumCharacters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

TEST(AnswerShapeTest, JsonIsTheWholeAnswer) {
  ShapeOptions options;
  options.content = Schema(R"({"type": "object"})");
  EXPECT_TRUE(Accepts(options, kHm + "{\"a\": 1}" + Close("response") + kMessageEnd));
  EXPECT_TRUE(Accepts(options, kHm + "{}" + Close("response") + "<|end_of_msg|>"));
  EXPECT_FALSE(Accepts(options, kHm + "Here: {}"));
  EXPECT_FALSE(Accepts(options, kHm + "{\"a\": 1" + Close("response")));
  EXPECT_FALSE(Accepts(options, kHm + "{} "));
  EXPECT_FALSE(Accepts(options, kHm + "{}" + "<|end_of_msg|>"));
  EXPECT_FALSE(Accepts(options, kHm + Close("response")));
  EXPECT_FALSE(Accepts(options, "hm<|end_of_msg|>"));
  EXPECT_FALSE(Accepts(options, "hm[EOS]"));
  EXPECT_FALSE(Accepts(options, kHm + "{}" + Close("response") + Open("tools")));
  options.thinking = false;
  EXPECT_TRUE(Accepts(options, "{}" + Close("response") + kMessageEnd));
}

TEST(AnswerShapeTest, RequiredCalls) {
  ShapeOptions options;
  options.tools = {{"get", nullptr}, {"say \"hi\"", nullptr}};
  options.min_calls = 1;
  options.max_calls = 2;
  const std::string begin = kHm + "text" + Close("response");
  EXPECT_FALSE(Accepts(options, begin + kMessageEnd));
  EXPECT_FALSE(Accepts(options, begin + "<|end_of_msg|>"));
  EXPECT_FALSE(Accepts(options, begin + Tools("")));
  EXPECT_TRUE(Accepts(options, begin + Tools(Call("get", 1, "")) + kMessageEnd));
  EXPECT_TRUE(Accepts(options, begin + Tools(Call("say &quot;hi&quot;", 1, "")) + kMessageEnd));
  EXPECT_FALSE(Accepts(options, begin + Tools(Call("set", 1, ""))));
  EXPECT_FALSE(Accepts(options, begin + Tools(Call("get", 2, ""))));
  EXPECT_TRUE(
      Accepts(options, begin + Tools(Call("get", 1, "") + Call("get", 2, "")) + kMessageEnd));
  EXPECT_FALSE(Accepts(
      options, begin + Tools(Call("get", 1, "") + Call("get", 2, "") + Call("get", 3, ""))));
  EXPECT_TRUE(Accepts(options, begin + Tools(Call("get", 1,
                                                  Argument("k", "string", "any\"{") +
                                                      Argument("n", "number", "-1.5") +
                                                      Argument("o", "object", "{}")))));
  EXPECT_FALSE(Accepts(options, begin + Tools(Call("get", 1, Argument("n", "number", "one")))));
  EXPECT_FALSE(Accepts(options, begin + Tools(Call("get", 1, Argument("n", "number", "")))));
  EXPECT_FALSE(Accepts(options, begin + Tools(Call("get", 1, Argument("n", "text", "1")))));
  EXPECT_FALSE(Accepts(options, begin + Tools(Call("get", 1, Argument("", "string", "1")))));
  EXPECT_FALSE(Accepts(
      options,
      begin + Tools(Call("get", 1, Argument("a", "string", "1") + Argument("a", "string", "1")))));
}

TEST(AnswerShapeTest, ArgumentsOfASchema) {
  ShapeOptions options;
  options.thinking = false;
  options.min_calls = 1;
  options.max_calls = 1;
  options.tools = {{"f", Schema(R"({"type": "object", "properties": {"city": {"type": "string"},
      "unit": {"enum": ["C", "F", 1]}, "days": {"type": "integer"}}, "required": ["city"],
      "additionalProperties": false})")}};
  const auto accepts = [&](const std::string& arguments) {
    return Accepts(options, Close("response") + Tools(Call("f", 1, arguments)) + kMessageEnd);
  };
  const std::string city = Argument("city", "string", "Paris");
  EXPECT_TRUE(accepts(city));
  EXPECT_FALSE(accepts(""));
  EXPECT_FALSE(accepts(Argument("city", "number", "1")));
  EXPECT_FALSE(accepts(city + city));
  EXPECT_TRUE(accepts(Argument("days", "number", "3") + city));
  EXPECT_FALSE(accepts(Argument("days", "number", "3.5") + city));
  EXPECT_TRUE(accepts(city + Argument("unit", "string", "F")));
  EXPECT_TRUE(accepts(city + Argument("unit", "number", "1")));
  EXPECT_FALSE(accepts(city + Argument("unit", "number", "2")));
  EXPECT_FALSE(accepts(city + Argument("unit", "string", "K")));
  EXPECT_FALSE(accepts(city + Argument("unit", "string", "")));
  EXPECT_FALSE(accepts(city + Argument("more", "string", "x")));
}

TEST(AnswerShapeTest, LengthsOfStringArguments) {
  ShapeOptions options;
  options.thinking = false;
  options.min_calls = 1;
  options.max_calls = 1;
  options.tools = {{"f", Schema(R"({"type": "object", "properties": {
      "a": {"type": "string", "minLength": 2, "maxLength": 3}, "b": {"type": "string", "minLength": 2},
      "c": {"anyOf": [{"type": "string", "maxLength": 1}, {"const": "long one"}, {"type": "null"}]},
      "d": {"type": "array", "items": {"type": "string", "maxLength": 1}}},
      "additionalProperties": {"type": "string", "maxLength": 0}})")}};
  const auto accepts = [&](const std::string& key, const std::string& value,
                           const std::string& type = "string") {
    return Accepts(
        options, Close("response") + Tools(Call("f", 1, Argument(key, type, value))) + kMessageEnd);
  };
  EXPECT_FALSE(accepts("a", ""));
  EXPECT_FALSE(accepts("a", "x"));
  EXPECT_TRUE(accepts("a", "xy"));
  EXPECT_TRUE(accepts("a", "xyz"));
  EXPECT_FALSE(accepts("a", "xyz4"));
  // Characters, not bytes; and whole ones.
  EXPECT_TRUE(accepts("a", "日本語"));
  EXPECT_FALSE(accepts("a", "日"));
  EXPECT_FALSE(accepts("a", "日本語x"));
  EXPECT_FALSE(accepts("a", "xy\xe6\x97"));
  EXPECT_FALSE(accepts("a", "x\xff"));
  EXPECT_FALSE(accepts("b", "x"));
  EXPECT_TRUE(accepts("b", "as long as you like"));
  EXPECT_TRUE(accepts("c", ""));
  EXPECT_TRUE(accepts("c", "l"));
  EXPECT_FALSE(accepts("c", "lo"));
  EXPECT_TRUE(accepts("c", "long one"));
  EXPECT_FALSE(accepts("c", "long one!"));
  EXPECT_TRUE(accepts("c", "null", "null"));
  EXPECT_TRUE(accepts("d", R"(["x"])", "array"));
  EXPECT_FALSE(accepts("d", R"(["xy"])", "array"));
  EXPECT_TRUE(accepts("other", ""));
  EXPECT_FALSE(accepts("other", "x"));
}

TEST(AnswerShapeTest, OtherArgumentsWhereTheSchemaAllowsThem) {
  ShapeOptions options;
  options.thinking = false;
  options.min_calls = 1;
  options.max_calls = 1;
  options.tools = {{"f", Schema(R"({"type": "object", "properties": {"a": {"type": "null"}},
                                    "additionalProperties": {"type": "boolean"}})")}};
  const auto accepts = [&](const std::string& arguments) {
    return Accepts(options, Close("response") + Tools(Call("f", 1, arguments)) + kMessageEnd);
  };
  EXPECT_TRUE(accepts(Argument("a", "null", "null") + Argument("b", "boolean", "true")));
  EXPECT_FALSE(accepts(Argument("a", "boolean", "true")));
  EXPECT_FALSE(accepts(Argument("b", "string", "true")));
}

TEST(AnswerShapeTest, NoCalls) {
  ShapeOptions options;
  options.tools = {{"f", nullptr}};
  options.max_calls = 0;
  EXPECT_TRUE(Accepts(options, kHm + "text" + Close("response") + kMessageEnd));
  EXPECT_FALSE(Accepts(options, kHm + "text" + Close("response") + Open("tools")));
  EXPECT_FALSE(Accepts(options, kHm + Open("tools")));
}

TEST(AnswerShapeTest, CallsInPlaceOfJson) {
  ShapeOptions options;
  options.content = Schema(R"({"type": "object"})");
  options.tools = {{"f", nullptr}};
  options.max_calls = 1;
  const std::string call = Tools(Call("f", 1, ""));
  EXPECT_TRUE(Accepts(options, kHm + Close("response") + call + kMessageEnd));
  EXPECT_FALSE(Accepts(options, kHm + Close("response") + kMessageEnd));
  EXPECT_TRUE(Accepts(options, kHm + "{}" + Close("response") + call + kMessageEnd));
  EXPECT_TRUE(Accepts(options, kHm + "{}" + Close("response") + kMessageEnd));
}

// With a real vocabulary, whatever is picked: the answer ends, and is what it must be.
TEST(TokenShapeTest, RandomTokensBecomeACall) {
  const auto tokenizer = Tokenizer::Load(DELTAFIN_SOURCE_DIR "/models/k3-nano");
  auto options = std::make_shared<ShapeOptions>();
  options->thinking = false;
  options->min_calls = 1;
  options->max_calls = 1;
  options->tools = {{"get_weather", Schema(R"({"type": "object", "properties": {"days":
      {"type": "integer"}, "unit": {"enum": ["C", "F"]}, "place": {"type": "string", "minLength": 5,
      "maxLength": 9}}, "required": ["days", "unit", "place"], "additionalProperties": false})")}};
  for (unsigned seed = 0; seed < 5; ++seed) {
    std::mt19937 random(seed);
    TokenShape shape(*tokenizer, options);
    const auto parser = ChatParser::Create(*tokenizer, false);
    std::vector<ToolCall> calls;
    for (int i = 0; i < 3000 && !parser->message_ended(); ++i) {
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
        // Text has no end by itself.
        if (shape.Allows(id)) allowed.push_back(id);
      }
      ASSERT_FALSE(allowed.empty());
      const TokenId close = tokenizer->SpecialId("<|close|>");
      const bool may_close = shape.Allows(close);
      const TokenId id = may_close ? close : allowed[random() % allowed.size()];
      shape.Accept(id);
      for (const ToolCall& call : parser->Push(id).finished_calls) calls.push_back(call);
    }
    EXPECT_TRUE(parser->message_ended());
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].name, "get_weather");
    const Json arguments = ParseJson(calls[0].arguments, "arguments");
    EXPECT_TRUE(arguments.at("days").is_number_integer());
    EXPECT_TRUE(arguments.at("unit") == "C" || arguments.at("unit") == "F");
    EXPECT_GE(NumCharacters(arguments.at("place")), 5);
    EXPECT_LE(NumCharacters(arguments.at("place")), 9);
  }
}

}  // namespace
}  // namespace deltafin
