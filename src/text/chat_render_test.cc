#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "chat_elements.h"
#include "deltafin/chat.h"
#include "deltafin/error.h"

namespace deltafin {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// The text of a request without effort message and generation prompt. `fields`: after the messages.
std::string Messages(const std::string& messages, const std::string& fields = "") {
  const std::string text =
      RenderChat("{\"messages\": [" + messages +
                 "], \"thinking\": true, \"reasoning_effort\": " + "\"none\"" + fields + "}")
          .Text();
  const std::string prompt = "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>";
  EXPECT_TRUE(text.ends_with(prompt)) << text;
  return text.substr(0, text.size() - std::min(text.size(), prompt.size()));
}

const std::string kUser = R"({"role": "user", "content": "hi"})";
const std::string kUserText =
    "<|open|>message role=\"user\"<|sep|>hi<|close|>message<|sep|><|end_of_msg|>";

std::string SystemNote(const std::string& type, const std::string& body) {
  return "<|open|>message role=\"system\" type=\"" + type + "\"<|sep|>" + body +
         "<|close|>message<|sep|><|end_of_msg|>";
}

struct Failure {
  ErrorCode code;
  std::string message;
};

std::optional<Failure> FailureOf(const std::string& request) {
  try {
    RenderChat(request);
  } catch (const Error& error) {
    return Failure{error.code(), error.what()};
  }
  return std::nullopt;
}

void ExpectInvalid(const std::string& request, const std::string& message) {
  const std::optional<Failure> failure = FailureOf(request);
  ASSERT_TRUE(failure) << request;
  EXPECT_EQ(failure->code, ErrorCode::kInvalidArgument) << request;
  EXPECT_THAT(failure->message, StartsWith(message)) << request;
}

void ExpectInvalidMessage(const std::string& message_json, const std::string& message) {
  ExpectInvalid("{\"messages\": [" + kUser + "," + message_json + "]}", message);
}

TEST(ChatRenderTest, ToolsAreDeclaredFirstWithSortedKeys) {
  const std::string text = RenderChat(
                               R"({"messages": [{"role": "user", "content": "hi"}],
              "tools": [{"type": "function", "function": {"name": "größe", "b": 1.0, "a": [2, {"z": 1, "y": null}]}}]})")
                               .Text();
  EXPECT_THAT(
      text,
      StartsWith(
          SystemNote("tool-declare",
                     "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n"
                     "[{\"function\":{\"a\":[2,{\"y\":null,\"z\":1}],\"b\":1.0,\"name\":\"größe\"},"
                     "\"type\":\"function\"}]\n```") +
          "<|open|>message role=\"system\" type=\"thinking-effort\"<|sep|>"));
  for (const char* none : {"[]", "null"}) {
    EXPECT_EQ(Messages(kUser, std::string(", \"tools\": ") + none), kUserText);
  }
}

TEST(ChatRenderTest, SystemMessagesCanBringTools) {
  const std::string note = SystemNote(
      "tool-declare",
      "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
      "You have access to all existing and extended tools.\n"
      "Here are the specs for the extended tools.\n\n```json\n[{\"a\":2,\"b\":1}]\n```");
  EXPECT_EQ(Messages(kUser + R"(, {"role": "system", "tools": [{"b": 1, "a": 2}]})"),
            kUserText + note);
  EXPECT_EQ(
      Messages(kUser + R"(, {"role": "system", "content": "Look.", "tools": [{"b": 1, "a": 2}]})"),
      kUserText + note +
          "<|open|>message role=\"system\"<|sep|>Look.<|close|>message<|sep|><|end_of_msg|>");
}

TEST(ChatRenderTest, ThinkingAndEffort) {
  const auto text = [](const std::string& fields) {
    return RenderChat("{\"messages\": [" + kUser + "]" + fields + "}");
  };
  EXPECT_THAT(text("").Text(), HasSubstr("`thinking_effort=max`"));
  EXPECT_TRUE(text("").thinking);
  EXPECT_THAT(text(R"(, "reasoning_effort": null)").Text(), HasSubstr("`thinking_effort=max`"));
  EXPECT_THAT(text(R"(, "reasoning_effort": "low")").Text(), HasSubstr("`thinking_effort=low`"));
  EXPECT_THAT(text(R"(, "reasoning_effort": "high")").Text(), HasSubstr("`thinking_effort=high`"));
  const std::string silent =
      kUserText + "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>";
  for (const char* fields : {R"(, "thinking": false)", R"(, "reasoning_effort": "none")",
                             R"(, "reasoning_effort": "high", "thinking": false)"}) {
    EXPECT_EQ(text(fields).Text(), silent);
    EXPECT_FALSE(text(fields).thinking);
  }
}

TEST(ChatRenderTest, ToolChoice) {
  const std::string required = SystemNote("tool-choice",
                                          "The system is invoked with `tool_choice=required`.\n"
                                          "You MUST call tools in the next message.");
  EXPECT_EQ(Messages(kUser, R"(, "tool_choice": "auto")"), kUserText);
  EXPECT_EQ(Messages(kUser, R"(, "tool_choice": null)"), kUserText);
  EXPECT_EQ(Messages(kUser, R"(, "tool_choice": "required")"), kUserText + required);
  EXPECT_EQ(Messages(kUser, R"(, "tool_choice": "none")"),
            kUserText + SystemNote("tool-choice",
                                   "The system is invoked with `tool_choice=none`.\n"
                                   "You MUST NOT call any tools in the next message."));
}

TEST(ChatRenderTest, NamedToolIsTheOnlyOneDeclared) {
  const std::string fields =
      R"(, "tools": [{"function": {"name": "a"}}, {"function": {"name": "b"}}],
         "tool_choice": {"type": "function", "function": {"name": "b"}})";
  const std::string text = Messages(kUser, fields);
  EXPECT_THAT(text, HasSubstr("[{\"function\":{\"name\":\"b\"}}]"));
  EXPECT_THAT(text, HasSubstr("`tool_choice=required`"));

  const std::string dynamic = R"(, {"role": "system", "tools": [{"function": {"name": "c"}}]})";
  EXPECT_THAT(Messages(kUser + dynamic, fields), Not(HasSubstr("New Tools")));
  EXPECT_THAT(Messages(kUser + dynamic, R"(, "tool_choice": {"function": {"name": "c"}})"),
              HasSubstr("[{\"function\":{\"name\":\"c\"}}]"));
  ExpectInvalid("{\"messages\": [" + kUser + R"(], "tool_choice": {"function": {"name": "x"}}})",
                "tool_choice.function.name: expected the name of a function in tools, got \"x\"");
}

TEST(ChatRenderTest, ResponseFormat) {
  const std::string body =
      "`.\nYour response must be raw JSON data without markdown code blocks (```json) or any "
      "additional formatting.";
  EXPECT_EQ(Messages(kUser, R"(, "response_format": {"type": "text"})"), kUserText);
  EXPECT_EQ(
      Messages(kUser, R"(, "response_format": {"type": "json_object"})"),
      kUserText + SystemNote("response-format",
                             "The system is invoked with `response_format=json_object" + body));
  EXPECT_EQ(
      Messages(kUser,
               R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "n",
                         "schema": {"type": "object", "additionalProperties": false}}})"),
      kUserText + SystemNote("response-format",
                             "The system is invoked with `response_format=json_schema" + body +
                                 "\nThe JSON data must match the following schema:\n```json\n"
                                 "{\"additionalProperties\":false,\"type\":\"object\"}\n```"));
}

TEST(ChatRenderTest, RolesNamesAndParts) {
  EXPECT_EQ(Messages(R"({"role": "developer", "content": "be brief"})"),
            Messages(R"({"role": "system", "content": "be brief"})"));
  EXPECT_EQ(Messages(R"({"role": "user", "name": "a\"&b", "content": "hi"})"),
            "<|open|>message role=\"user\" name=\"a&quot;&amp;b\"<|sep|>hi<|close|>message<|sep|>"
            "<|end_of_msg|>");
  EXPECT_EQ(Messages(R"({"role": "user", "name": "", "content": "hi"})"), kUserText);

  // Parts are encoded one by one, like every segment.
  const RenderedChat chat = RenderChat(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "h"},
          {"type": "text", "text": ""}, {"type": "text", "text": "i"}]}], "thinking": false})");
  EXPECT_THAT(chat.Text(), StartsWith(kUserText));
  EXPECT_EQ(chat.segments[7].text, "h");
  EXPECT_EQ(chat.segments[8].text, "i");
}

TEST(ChatRenderTest, Assistant) {
  const auto turn = [](const std::string& inner) {
    return "<|open|>message role=\"assistant\"<|sep|>" + inner +
           "<|close|>message<|sep|><|end_of_msg|>";
  };
  const std::string no_think = "<|open|>think<|sep|><|close|>think<|sep|>";
  const std::string response = "<|open|>response<|sep|>a<|close|>response<|sep|>";
  EXPECT_EQ(Messages(R"({"role": "assistant", "content": "a"})"), turn(no_think + response));
  EXPECT_EQ(
      Messages(R"({"role": "assistant", "content": "a", "reasoning_content": " \n\u00a0\u3000"})"),
      turn(no_think + response));
  for (const char* key : {"reasoning_content", "reasoning"}) {
    EXPECT_EQ(
        Messages(std::string(R"({"role": "assistant", "content": "a", ")") + key + R"(": " r\n"})"),
        turn("<|open|>think<|sep|> r\n<|close|>think<|sep|>" + response));
  }
  EXPECT_THAT(Messages(R"({"role": "assistant", "reasoning": "no", "reasoning_content": "yes"})"),
              HasSubstr("<|sep|>yes<|close|>think<|sep|><|open|>response<|sep|><|close|>response"));
  // Without thinking the history has no think elements.
  EXPECT_THAT(RenderChat(R"({"messages": [{"role": "assistant", "content": "a",
                             "reasoning": "r"}], "thinking": false})")
                  .Text(),
              StartsWith(turn(response)));
}

std::string Call(const std::string& arguments) {
  const std::string text = Messages(
      R"({"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
          "function": {"name": "f", "arguments": )" +
      arguments + "}}]}");
  const std::string begin = "<|open|>call tool=\"f\" index=\"1\"<|sep|>";
  const size_t at = text.find(begin) + begin.size();
  return text.substr(at, text.find("<|close|>call<|sep|><|close|>tools<|sep|>") - at);
}

TEST(ChatRenderTest, CallArguments) {
  const std::string expected = Argument("s", "string", "a \"b\"\né") +
                               Argument("n", "number", "1.0") +
                               Argument("i", "number", "12345678901234567890123") +
                               Argument("b", "boolean", "true") + Argument("z", "null", "null") +
                               Argument("a", "array", "[1, {\"y\": 100000.0, \"x\": \"é\\n\"}]") +
                               Argument("o", "object", "{}");
  EXPECT_EQ(Call(R"({"s": "a \"b\"\né", "n": 1.0, "i": 12345678901234567890123, "b": true,
                     "z": null, "a": [1, {"y": 1e5, "x": "é\n"}], "o": {}})"),
            expected);
  EXPECT_EQ(Call(R"("{\"k&\": \"v\", \"n\": 2}")"),
            Argument("k&amp;", "string", "v") + Argument("n", "number", "2"));
  for (const char* none : {R"("")", R"(" \n ")", "null", "{}", R"("{}")"}) {
    EXPECT_EQ(Call(none), "") << none;
  }
  EXPECT_EQ(Call(R"("{\"a\": <|open|>")"),
            "<|open|>json type=\"object\"<|sep|>{\"a\": <|open|><|close|>json<|sep|>");
  for (const char* wrong : {"3", "[]", R"("[1]")", R"("3")"}) {
    ExpectInvalidMessage(R"({"role": "assistant", "tool_calls": [{"function": {"name": "f",
                             "arguments": )" +
                             std::string(wrong) + "}}]}",
                         "messages[1].tool_calls[0].function.arguments: expected");
  }
}

// An assistant message with the calls a, b (ids 1, 2), then `tools`; returns what follows the
// calls.
std::string ToolRun(const std::string& tools) {
  const std::string text = Messages(
      R"({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "a"}},
          {"id": "2", "function": {"name": "b"}}]},)" +
      tools);
  const std::string end = "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
  return text.substr(text.find(end) + end.size());
}

std::string ToolText(const std::string& name, int index, const std::string& content) {
  return "<|open|>message role=\"tool\" tool=\"" + name + "\" index=\"" + std::to_string(index) +
         "\"<|sep|>" + content + "<|close|>message<|sep|><|end_of_msg|>";
}

TEST(ChatRenderTest, ToolMessagesFollowTheOrderOfTheCalls) {
  EXPECT_EQ(ToolRun(R"({"role": "tool", "tool_call_id": "2", "name": "x", "content": "B"},
                       {"role": "tool", "tool_call_id": "1", "content": "A"})"),
            ToolText("a", 1, "A") + ToolText("b", 2, "B"));
  // One unknown id: the order stays, and names are the message's, else those of the k-th call.
  EXPECT_EQ(ToolRun(R"({"role": "tool", "tool_call_id": "2", "name": "x", "content": "B"},
                       {"role": "tool", "tool_call_id": "?", "content": "A"},
                       {"role": "tool", "tool": "y", "name": "z", "content": "C"})"),
            ToolText("x", 1, "B") + ToolText("b", 2, "A") + ToolText("y", 3, "C"));
  // The index goes on until the next assistant message.
  EXPECT_EQ(ToolRun(R"({"role": "tool", "tool_call_id": "2", "content": "B"},)" + kUser +
                    R"(, {"role": "tool", "tool_call_id": "1", "content": "A"})"),
            ToolText("b", 1, "B") + kUserText + ToolText("a", 2, "A"));
  EXPECT_EQ(ToolRun(R"({"role": "tool", "tool_call_id": "1", "content": null})"),
            ToolText("a", 1, ""));
  ExpectInvalidMessage(R"({"role": "tool", "tool_call_id": "1", "content": "A"})",
                       "messages[1].tool_call_id: expected the id of a call");
}

TEST(ChatRenderTest, BadRequestsNameTheField) {
  ExpectInvalid("", "request: not valid JSON");
  ExpectInvalid("{\"messages\": [", "request: not valid JSON");
  ExpectInvalid("\"\xff\"", "request: not valid JSON");
  ExpectInvalid(std::string(100, '['), "request: JSON is nested");
  ExpectInvalid("[]", "request: expected an object with messages, got an empty array");
  ExpectInvalid("{}", "messages: expected an array of at least one message, got nothing");
  ExpectInvalid(R"({"messages": []})", "messages: expected an array of at least one message");
  ExpectInvalid(R"({"messages": "hi"})", "messages: expected an array, got \"hi\"");
  ExpectInvalidMessage("3", "messages[1]: expected an object with role and content, got 3");
  ExpectInvalidMessage(R"({"role": "bot", "content": ""})",
                       "messages[1].role: expected one of \"system\", \"developer\", \"user\", "
                       "\"assistant\", \"tool\", got \"bot\"");
  ExpectInvalidMessage(R"({"content": ""})", "messages[1].role: expected one of");
  ExpectInvalidMessage(R"({"role": "user"})", "messages[1].content: expected a string or an array");
  ExpectInvalidMessage(R"({"role": "system", "content": null})", "messages[1].content: expected");
  ExpectInvalidMessage(R"({"role": "user", "content": {"a": 1}})", "messages[1].content: expected");
  ExpectInvalidMessage(R"({"role": "user", "content": ["x"]})", "messages[1].content[0]: expected");
  ExpectInvalidMessage(R"({"role": "user", "content": [{"type": "poem"}]})",
                       "messages[1].content[0].type: expected \"text\", got \"poem\"");
  ExpectInvalidMessage(R"({"role": "user", "content": [{"type": "text", "text": 1}]})",
                       "messages[1].content[0].text: expected a string, got 1");
  ExpectInvalidMessage(R"({"role": "user", "name": 7, "content": ""})",
                       "messages[1].name: expected a string, got 7");
  ExpectInvalidMessage(R"({"role": "assistant", "reasoning_content": []})",
                       "messages[1].reasoning_content: expected a string, got an empty array");
  ExpectInvalidMessage(R"({"role": "assistant", "tool_calls": {}})",
                       "messages[1].tool_calls: expected an array, got an object");
  ExpectInvalidMessage(R"({"role": "assistant", "tool_calls": [{"function": {}}]})",
                       "messages[1].tool_calls[0].function.name: expected the name of a tool");
  ExpectInvalidMessage(R"({"role": "system", "content": "", "tools": [1]})",
                       "messages[1].tools[0]: expected an object, got 1");
}

TEST(ChatRenderTest, TheCallerCanDecideAboutThinking) {
  const std::string request =
      "{\"messages\": [" + kUser + "], \"reasoning_effort\": \"medium\", \"thinking\": {}}";
  const auto effort = [](const char* name, bool thinking) {
    return RenderChat("{\"messages\": [" + kUser + "], \"reasoning_effort\": \"" + name +
                      "\", \"thinking\": " + (thinking ? "true" : "false") + "}")
        .Text();
  };
  EXPECT_EQ(RenderChat(request, {ReasoningEffort::kHigh, true}).Text(), effort("high", true));
  EXPECT_EQ(RenderChat(request, {ReasoningEffort::kNone, true}).Text(), effort("none", true));
  EXPECT_EQ(RenderChat(request, {ReasoningEffort::kLow, false}).Text(), effort("low", false));
}

TEST(ChatRenderTest, BadOptionsNameTheField) {
  const auto bad = [](const std::string& field, const std::string& message) {
    ExpectInvalid("{\"messages\": [" + kUser + "], " + field + "}", message);
  };
  bad(R"("tools": {})", "tools: expected an array, got an object");
  bad(R"("tools": ["x"])", "tools[0]: expected an object, got \"x\"");
  bad(R"("tool_choice": "any")", "tool_choice: expected \"auto\", \"none\", \"required\"");
  bad(R"("tool_choice": true)", "tool_choice: expected");
  bad(R"("tool_choice": {})", "tool_choice.function.name: expected");
  bad(R"("reasoning_effort": "medium")",
      "reasoning_effort: expected one of \"none\", \"low\", \"high\", \"max\", got \"medium\"");
  bad(R"("reasoning_effort": 3)", "reasoning_effort: expected one of");
  bad(R"("thinking": "yes")", "thinking: expected true or false, got \"yes\"");
  bad(R"("response_format": "json")", "response_format: expected an object, got \"json\"");
  bad(R"("response_format": {"type": "xml"})", "response_format.type: expected one of");
  bad(R"("response_format": {"type": "json_schema"})", "response_format.json_schema: expected");
  bad(R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})",
      "response_format.json_schema.schema: expected a JSON schema object, got nothing");
  EXPECT_FALSE(FailureOf("{\"messages\": [" + kUser + "], \"seed\": \"x\", \"future\": {}}"));
}

TEST(ChatRenderTest, MediaIsUnsupported) {
  for (const char* type :
       {"image_url", "image", "input_image", "video_url", "input_audio", "file"}) {
    const std::optional<Failure> failure = FailureOf(
        R"({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}, {"type": ")" +
        std::string(type) + R"("}]}]})");
    ASSERT_TRUE(failure) << type;
    EXPECT_EQ(failure->code, ErrorCode::kUnsupported) << type;
    EXPECT_THAT(failure->message, StartsWith("messages[0].content[1]: ")) << type;
  }
}

TEST(ChatRenderTest, SimpleChatIsTheSameAsItsRequest) {
  const SimpleChat simple{"You are kind.", "Hi!", ReasoningEffort::kLow, true};
  EXPECT_EQ(RenderSimpleChat(simple).Text(),
            RenderChat(R"({"messages": [{"role": "system", "content": "You are kind."},
                           {"role": "user", "content": "Hi!"}], "reasoning_effort": "low"})")
                .Text());
  const SimpleChat silent{"", "Hi!", ReasoningEffort::kMax, false};
  EXPECT_EQ(RenderSimpleChat(silent).Text(),
            RenderChat(R"({"messages": [{"role": "user", "content": "Hi!"}], "thinking": false})")
                .Text());
  EXPECT_FALSE(RenderSimpleChat(silent).thinking);
}

}  // namespace
}  // namespace deltafin
