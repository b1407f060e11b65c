#include "server/chat_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/server_test_util.h"

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RequestLimits Limits() { return {{"m", "alias"}, &TestTokenizer(), 2000, 0, 16}; }

// A request with one user message and these other fields.
std::string Body(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "Hi"}])" +
         (fields.empty() ? "" : ", " + fields) + "}";
}
ChatCompletionRequest Read(const std::string& fields) {
  return ReadChatRequest(Body(fields), Limits());
}

void ExpectBad(const std::string& fields, const std::string& param, const std::string& message,
               int status = 400) {
  try {
    (void)Read(fields);
    ADD_FAILURE() << fields << " was taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), status) << fields;
    EXPECT_EQ(error.param(), param) << fields;
    EXPECT_THAT(error.what(), HasSubstr(message)) << fields;
  }
}

const std::string kTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
                 {"type": "function", "function": {"name": "g"}}])";

TEST(ChatRequestTest, Defaults) {
  const ChatCompletionRequest request = Read("");
  EXPECT_EQ(request.generation.num_choices, 1);
  EXPECT_FALSE(request.generation.stream);
  EXPECT_EQ(request.generation.sampling.temperature, 0);
  EXPECT_EQ(request.max_new_tokens, 2000 - static_cast<int64_t>(request.prompt.ids.size()));
  EXPECT_EQ(request.top_logprobs, -1);
  EXPECT_EQ(request.shape, nullptr);
  EXPECT_TRUE(request.thinking);
  EXPECT_THAT(request.ignored, IsEmpty());
  EXPECT_THAT(request.notes, IsEmpty());
}

TEST(ChatRequestTest, Sampling) {
  const SamplingOptions s =
      Read(R"("temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "seed": -3,
              "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1,
              "logit_bias": {"5": -100, "7": 2.5})")
          .generation.sampling;
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(s.presence_penalty, 1);
  EXPECT_EQ(s.frequency_penalty, -1);
  EXPECT_EQ(s.repetition_penalty, 1.1);
  EXPECT_THAT(s.logit_bias, ElementsAre(std::pair(5, -100.0), std::pair(7, 2.5)));
  EXPECT_NE(SeedOfChoice(1, 0), SeedOfChoice(1, 1));
  EXPECT_EQ(SeedOfChoice(1, 0), 1u);
}

TEST(ChatRequestTest, ImpossibleValuesNameTheField) {
  ExpectBad(R"("temperature": "hot")", "temperature", "a number from 0 to 100, got \"hot\"");
  ExpectBad(R"("temperature": 0.0001)", "temperature", "at least 0.001");
  ExpectBad(R"("temperature": -1)", "temperature", "got -1");
  ExpectBad(R"("top_p": 0)", "top_p", "more than 0");
  ExpectBad(R"("top_p": 1.5)", "top_p", "got 1.5");
  ExpectBad(R"("top_k": 1.5)", "top_k", "a whole number");
  ExpectBad(R"("n": 0)", "n", "from 1 to 16");
  ExpectBad(R"("n": 17)", "n", "from 1 to 16");
  ExpectBad(R"("seed": 1e30)", "seed", "a whole number");
  ExpectBad(R"("seed": 9223372036854775808)", "seed",
            "to 9223372036854775807, got 9223372036854775808");
  ExpectBad(R"("repetition_penalty": 1e-308)", "repetition_penalty", "from 0.01 to 100");
  ExpectBad(R"("stream": "yes")", "stream", "true or false");
  ExpectBad(R"("stop": "")", "stop", "1 to 1024 bytes");
  ExpectBad(R"("stop": [1])", "stop", "strings");
  ExpectBad(R"("max_tokens": 0)", "max_tokens", "at least 1");
  ExpectBad(R"("max_completion_tokens": -1)", "max_completion_tokens", "at least 1");
  ExpectBad(R"("stream_options": {"include_usage": true})", "stream_options", "stream");
  ExpectBad(R"("top_logprobs": 3)", "top_logprobs", "logprobs");
  ExpectBad(R"("logprobs": true, "top_logprobs": 21)", "top_logprobs", "0 to 20");
  ExpectBad(R"("logit_bias": {"x": 1})", "logit_bias", "token ids below");
  ExpectBad(R"("logit_bias": {"99999999": 1})", "logit_bias", "token ids below");
  ExpectBad(R"("logit_bias": {"1": 101})", "logit_bias", "-100 to 100");
  ExpectBad(R"("model": "other")", "model", "this server has \"m\"", 404);
  ExpectBad(R"("reasoning_effort": "huge")", "reasoning_effort", "got \"huge\"");
  ExpectBad(R"("thinking": {"type": "perhaps"})", "thinking", "enabled");
  ExpectBad(R"("modalities": ["audio"])", "modalities", "text");
  ExpectBad(R"("functions": [])", "functions", "use tools");
  ExpectBad(R"("response_format": {"type": "xml"})", "response_format.type", "json_schema");
  ExpectBad(R"("response_format": {"type": "json_schema", "json_schema": {"schema":
                {"pattern": "a"}}})",
            "response_format.json_schema.schema", "\"pattern\" is not supported");
  ExpectBad(R"("tools": [{"type": "web_search"}])", "tools[0].type", "function");
  ExpectBad(R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name",
            "the name");
  ExpectBad(R"("tool_choice": "required")", "tool_choice", "no tools");
  ExpectBad(kTools + R"(, "tool_choice": {"function": {"name": "h"}})", "tool_choice.function.name",
            "the name of a function in tools");
  ExpectBad(R"("parallel_tool_calls": 1)", "parallel_tool_calls", "true or false");
}

TEST(ChatRequestTest, BodiesThatAreNone) {
  const auto status = [](const std::string& body) {
    try {
      (void)ReadChatRequest(body, Limits());
    } catch (const ApiError& error) {
      return error.status();
    }
    return 200;
  };
  for (
      const std::string body :
      {"", "{", "[]", "null", "{}", R"({"messages": []})", R"({"messages": [{}]})",
       R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})"}) {
    EXPECT_EQ(status(body), 400) << body;
  }
  std::string deep = R"({"messages": [{"role": "user", "content": "x"}], "x": )";
  for (int i = 0; i < 100000; ++i) deep += '[';
  EXPECT_EQ(status(deep), 400);
}

TEST(ChatRequestTest, ModelsAndLimits) {
  EXPECT_NO_THROW(Read(R"("model": "alias")"));
  EXPECT_EQ(Read(R"("max_tokens": 5)").max_new_tokens, 5);
  EXPECT_EQ(Read(R"("max_tokens": 5, "max_completion_tokens": 6)").max_new_tokens, 6);
  EXPECT_LT(Read(R"("max_tokens": 100000)").max_new_tokens, 2000);
  RequestLimits limits = Limits();
  limits.max_new_tokens = 10;
  EXPECT_EQ(ReadChatRequest(Body(""), limits).max_new_tokens, 10);
  EXPECT_THROW(ReadChatRequest(Body(R"("max_tokens": 11)"), limits), ApiError);
  limits.max_answers = 3;
  EXPECT_NO_THROW(ReadChatRequest(Body(R"("n": 3)"), limits));
  EXPECT_THROW(ReadChatRequest(Body(R"("n": 4)"), limits), ApiError);
  limits.context_tokens = 5;
  EXPECT_THROW(ReadChatRequest(Body(""), limits), ApiError);
}

TEST(ChatRequestTest, UnknownFieldsAreNamed) {
  EXPECT_THAT(Read(R"("future": 1, "user": "u", "verbosity": "low", "metadata": {}, "top_p": null)")
                  .ignored,
              ElementsAre("future", "verbosity"));
  EXPECT_THAT(Read(R"("thinking": {"type": "enabled", "budget_tokens": 9}, "stream": true,
                      "stream_options": {"include_usage": true, "include_obfuscation": false})")
                  .ignored,
              ElementsAre("stream_options.include_obfuscation", "thinking.budget_tokens"));
}

TEST(ChatRequestTest, Thinking) {
  EXPECT_FALSE(Read(R"("reasoning_effort": "none")").thinking);
  EXPECT_FALSE(Read(R"("thinking": {"type": "disabled"})").thinking);
  EXPECT_FALSE(Read(R"("chat_template_kwargs": {"thinking": false})").thinking);
  EXPECT_TRUE(Read(R"("reasoning_effort": "low")").thinking);
  const ChatCompletionRequest medium = Read(R"("reasoning_effort": "medium")");
  EXPECT_EQ(medium.prompt.ids, Read(R"("reasoning_effort": "high")").prompt.ids);
  EXPECT_THAT(medium.notes, ElementsAre(HasSubstr("medium is taken as high")));
}

TEST(ChatRequestTest, TheShapeOfTheAnswer) {
  EXPECT_EQ(Read(kTools).shape, nullptr);
  EXPECT_EQ(Read(kTools + R"(, "tool_choice": "auto")").shape, nullptr);
  const auto required = Read(kTools + R"(, "tool_choice": "required")").shape;
  ASSERT_NE(required, nullptr);
  EXPECT_EQ(required->min_calls, 1);
  EXPECT_EQ(required->tools.size(), 2u);
  EXPECT_NE(required->tools[0].arguments, nullptr);
  EXPECT_EQ(required->tools[1].arguments, nullptr);
  const auto named =
      Read(kTools + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}},
                         "parallel_tool_calls": false)")
          .shape;
  ASSERT_NE(named, nullptr);
  ASSERT_EQ(named->tools.size(), 1u);
  EXPECT_EQ(named->tools[0].name, "g");
  EXPECT_EQ(named->max_calls, 1);
  const auto none = Read(kTools + R"(, "tool_choice": "none")").shape;
  ASSERT_NE(none, nullptr);
  EXPECT_EQ(none->max_calls, 0);
  EXPECT_EQ(Read(R"("tool_choice": "none")").shape, nullptr);
  const auto json = Read(R"("response_format": {"type": "json_object"})").shape;
  ASSERT_NE(json, nullptr);
  EXPECT_NE(json->content, nullptr);
  EXPECT_EQ(Read(R"("response_format": {"type": "text"})").shape, nullptr);
  EXPECT_NE(
      Read(R"("tools": [{"type": "function", "function": {"name": "f", "strict": true}}])").shape,
      nullptr);
}

TEST(ChatRequestTest, AStrictToolNeedsASchemaThatCanBeEnforced) {
  const auto tool = [](const char* strict) {
    return R"("tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f",
              "strict": )" +
           std::string(strict) + R"(, "parameters": {"type": "object", "pattern": "x"}}}])";
  };
  ExpectBad(tool("true"), "tools[0].function.parameters", "pattern");
  EXPECT_EQ(Read(tool("false")).shape->tools[0].arguments, nullptr);
}

TEST(ChatRequestTest, SharedBeginnings) {
  const auto read = [](const std::string& messages, const std::string& more = "") {
    return ReadChatRequest("{\"messages\": [" + messages + "]" + more + "}", Limits()).prompt;
  };
  const std::string system = R"({"role": "system", "content": "Be kind."})";
  const std::string user = R"({"role": "user", "content": "Hi"})";
  const std::string answer = R"({"role": "assistant", "content": "Hello"})";
  const ChatPrompt first = read(system + "," + user);
  const ChatPrompt other = read(system + R"(,{"role": "user", "content": "What?"})");
  const ChatPrompt next = read(system + "," + user + "," + answer + "," + user);
  ASSERT_EQ(first.shared_lengths.size(), 2u);
  const auto begin_of = [](const ChatPrompt& prompt, int64_t length) {
    return std::vector<TokenId>(prompt.ids.begin(), prompt.ids.begin() + length);
  };
  // Other conversations share what the system says; the next request goes on from the last turn.
  EXPECT_EQ(begin_of(first, first.shared_lengths[0]), begin_of(other, first.shared_lengths[0]));
  EXPECT_EQ(begin_of(first, first.shared_lengths[1]), begin_of(next, first.shared_lengths[1]));
  EXPECT_EQ(first.ids[static_cast<size_t>(first.shared_lengths[1]) - 1],
            TestTokenizer().SpecialId("<|end_of_msg|>"));
  EXPECT_LT(first.shared_lengths[1], static_cast<int64_t>(first.ids.size()));
  // A note at the end of the prompt is not part of the turn.
  const ChatPrompt noted = read(system + "," + user, R"(, "tool_choice": "none")");
  EXPECT_EQ(noted.shared_lengths, first.shared_lengths);
}

}  // namespace
}  // namespace deltafin
