#include "server/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/server_test_util.h"

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RequestLimits ResponsesLimits() { return {{"m"}, &TestTokenizer(), 2000, 0, 16}; }

ResponsesRequest ReadResponses(const std::string& fields) {
  return ReadResponsesRequest("{" + fields + "}", ResponsesLimits());
}
std::vector<TokenId> PromptOf(const std::string& chat_fields) {
  return ReadChatRequest("{" + chat_fields + "}", ResponsesLimits()).prompt.ids;
}

void ExpectBadResponses(const std::string& fields, const std::string& param,
                        const std::string& message) {
  try {
    (void)ReadResponses(fields);
    ADD_FAILURE() << fields << " was taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400) << fields;
    EXPECT_EQ(error.param(), param) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(message)) << fields;
  }
}

TEST(ResponsesRequestTest, ATextIsAChat) {
  const ResponsesRequest request = ReadResponses(R"("input": "Hi", "instructions": "Be kind.",
      "max_output_tokens": 7, "temperature": 0.5, "seed": 3, "stream": true)");
  EXPECT_EQ(request.chat.prompt.ids, PromptOf(R"("messages": [
      {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])"));
  EXPECT_EQ(request.chat.max_new_tokens, 7);
  EXPECT_EQ(request.chat.generation.sampling.temperature, 0.5);
  EXPECT_EQ(request.chat.generation.sampling.seed, 3u);
  EXPECT_TRUE(request.chat.generation.stream);
  EXPECT_THAT(request.chat.ignored, IsEmpty());
  EXPECT_EQ(request.settings.at("instructions"), "Be kind.");
  EXPECT_EQ(request.settings.at("max_output_tokens"), 7);
  EXPECT_EQ(request.settings.at("store"), false);
  EXPECT_EQ(ReadResponses(R"("input": "Hi")").settings.at("temperature"), 0);
}

TEST(ResponsesRequestTest, ItemsAreTheMessagesOfAChat) {
  const ResponsesRequest request = ReadResponses(R"("input": [
      {"role": "developer", "content": "Short."},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "No."}],
       "content": [{"type": "reasoning_text", "text": "Look "},
                   {"type": "reasoning_text", "text": "it up."}]},
      {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
       "content": [{"type": "output_text", "text": "Wait.", "annotations": []}]},
      {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"x\": 1}"},
      {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "b", "output": "two"},
      {"type": "function_call_output", "call_id": "a",
       "output": [{"type": "input_text", "text": "one"}]},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Now I know."}]},
      {"role": "assistant", "content": "Rain."},
      {"role": "assistant", "content": "Much."},
      {"role": "user", "content": "Thanks"}])");
  EXPECT_EQ(request.chat.prompt.ids, PromptOf(R"("messages": [
      {"role": "developer", "content": "Short."},
      {"role": "user", "content": "Weather?"},
      {"role": "assistant", "reasoning_content": "Look it up.", "content": "Wait.", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "b", "content": "two"},
      {"role": "tool", "tool_call_id": "a", "content": "one"},
      {"role": "assistant", "reasoning_content": "Now I know.", "content": "Rain."},
      {"role": "assistant", "content": "Much."},
      {"role": "user", "content": "Thanks"}])"));
}

TEST(ResponsesRequestTest, ToolsFormatsAndReasoning) {
  const ResponsesRequest request = ReadResponses(R"("input": "Hi", "tools": [
        {"type": "function", "name": "f", "description": null, "strict": true,
         "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}],
      "tool_choice": {"type": "function", "name": "f"}, "reasoning": {"effort": "none"},
      "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
      "parallel_tool_calls": false)");
  EXPECT_EQ(request.chat.prompt.ids, PromptOf(R"("messages": [{"role": "user", "content": "Hi"}],
      "tools": [{"type": "function", "function": {"name": "f", "strict": true,
        "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}}],
      "tool_choice": {"type": "function", "function": {"name": "f"}}, "reasoning_effort": "none",
      "response_format": {"type": "json_schema", "json_schema":
        {"name": "n", "schema": {"type": "object"}}})"));
  ASSERT_NE(request.chat.shape, nullptr);
  EXPECT_EQ(request.chat.shape->min_calls, 1);
  EXPECT_EQ(request.chat.shape->max_calls, 1);
  EXPECT_NE(request.chat.shape->content, nullptr);
  EXPECT_FALSE(request.chat.thinking);
  EXPECT_EQ(request.settings.at("tools").at(0).at("name"), "f");
  EXPECT_EQ(request.settings.at("reasoning").at("effort"), "none");
}

TEST(ResponsesRequestTest, NotesAndIgnoredFieldsHaveTheirNamesHere) {
  const ResponsesRequest request =
      ReadResponses(R"("input": "Hi", "future": 1, "user": "u", "store": false,
      "reasoning": {"effort": "medium", "summary": "auto"}, "truncation": "disabled",
      "include": ["reasoning.encrypted_content"], "service_tier": "auto", "top_logprobs": 0,
      "previous_response_id": null, "background": false, "text": {"verbosity": "medium", "x": 1})");
  EXPECT_THAT(request.chat.ignored, ElementsAre("future", "text.x"));
  EXPECT_THAT(request.chat.notes,
              ElementsAre(HasSubstr("include"), HasSubstr("reasoning.summary"),
                          HasSubstr("reasoning.effort medium is taken as high")));
}

TEST(ResponsesRequestTest, ErrorsNameTheFieldAsItIsSpelledHere) {
  ExpectBadResponses("", "input", "a text, or an array of items");
  ExpectBadResponses(R"("input": [])", "input", "array of items");
  ExpectBadResponses(R"("input": [1])", "input[0]", "an object");
  ExpectBadResponses(R"("input": [{"role": "user"}])", "input[0].content", "a string or an array");
  ExpectBadResponses(R"("input": [{"role": "tool", "content": "x"}])", "input[0].role", "\"user\"");
  ExpectBadResponses(R"("input": [{"type": "item_reference", "id": "x"}])", "input[0].type",
                     "\"message\"");
  ExpectBadResponses(R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])",
                     "input[0].content[0]", "text only");
  ExpectBadResponses(R"("input": [{"role": "user", "content": [{"type": "input_text"}]}])",
                     "input[0].content[0].text", "a string");
  ExpectBadResponses(R"("input": [{"type": "reasoning", "encrypted_content": "x"}])",
                     "input[0].encrypted_content", "not from this server");
  ExpectBadResponses(R"("instructions": "x", "input": [{"role": "user", "content": "x"},
               {"type": "function_call", "call_id": "a", "arguments": "{}"}])",
                     "input[1].name", "the name of a tool");
  ExpectBadResponses(
      R"("input": [{"type": "function_call_output", "call_id": "a", "output": "x"}])",
      "input[0].call_id", "the call_id of a function_call");
  const std::string call =
      R"({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"})";
  ExpectBadResponses(R"("input": [)" + call +
                         R"(, {"type": "function_call_output", "call_id": "b", "output": "x"}])",
                     "input[1].call_id", "got \"b\"");
  ExpectBadResponses(R"("input": [{"type": "function_call", "name": "f", "arguments": "{}"}])",
                     "input[0].call_id", "got nothing");
  ExpectBadResponses(R"("input": "x", "temperature": -1)", "temperature", "from 0 to 100");
  ExpectBadResponses(R"("input": "x", "max_output_tokens": 0)", "max_output_tokens", "at least 1");
  ExpectBadResponses(R"("input": "x", "reasoning": {"effort": "huge"})", "reasoning.effort",
                     "\"low\"");
  ExpectBadResponses(R"("input": "x", "tools": [{"type": "web_search"}])", "tools[0].type",
                     "\"function\"");
  ExpectBadResponses(R"("input": "x", "tools": [{"type": "function"}])", "tools[0].name",
                     "the name");
  ExpectBadResponses(R"("input": "x", "tools": [{"type": "function", "name": "f", "strict": true,
               "parameters": {"pattern": "x"}}])",
                     "tools[0].parameters", "pattern");
  ExpectBadResponses(R"("input": "x", "tool_choice": {"type": "function", "name": "f"})",
                     "tool_choice.name", "a function in tools");
  ExpectBadResponses(R"("input": "x", "tool_choice": {"type": "web_search"})", "tool_choice.type",
                     "\"function\"");
  ExpectBadResponses(R"("input": "x", "text": {"format": {"type": "json_schema"}})", "text.format",
                     "a schema");
  ExpectBadResponses(R"("input": "x", "text": {"format": {"type": "json_schema", "name": "n",
               "schema": {"oneOf": []}}})",
                     "text.format.schema", "oneOf");
  ExpectBadResponses(R"("input": "x", "text": {"format": {"type": "grammar"}})", "text.format.type",
                     "\"text\"");
}

TEST(ResponsesRequestTest, WhatCannotBeDoneIsRefused) {
  for (const char* name : {"previous_response_id", "conversation", "prompt", "max_tool_calls",
                           "messages", "response_format", "reasoning_effort", "max_tokens", "n"}) {
    ExpectBadResponses(std::string(R"("input": "x", ")") + name + "\": 1", name, "");
  }
  ExpectBadResponses(R"("input": "x", "store": true)", "store", "nothing is kept here");
  ExpectBadResponses(R"("input": "x", "background": true)", "background", "nothing is kept here");
  ExpectBadResponses(R"("input": "x", "truncation": "auto")", "truncation", "refused");
  ExpectBadResponses(R"("input": "x", "top_logprobs": 2)", "top_logprobs", "chat completions");
  ExpectBadResponses(R"("input": "x", "include": ["web_search_call.results"])", "include",
                     "reasoning");
  ExpectBadResponses(R"("input": "x", "text": {"verbosity": "low"})", "text.verbosity",
                     "instructions");
}

}  // namespace
}  // namespace deltafin
