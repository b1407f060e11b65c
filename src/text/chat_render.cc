#include <array>
#include <initializer_list>
#include <utility>

#include "base/check.h"
#include "deltafin/chat.h"
#include "text/chat_markup.h"
#include "text/chat_request.h"
#include "text/python_json.h"
#include "text/request_fields.h"

namespace deltafin {
namespace {

struct Attribute {
  std::string_view key;
  std::string_view value;
};

// Collects segments. Control tokens come from Open, Close and EndMessage only: whatever is given to
// Text, and every attribute, stays plain text (guarded by ChatRenderTest.UserTextIsNeverControl).
class Markup {
 public:
  // A tag is many segments: joined ones would be encoded differently where a value begins or ends
  // with punctuation.
  void Open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
    Control(kOpenMark);
    Text(tag);
    for (const Attribute& attribute : attributes) {
      Text(std::string(1, ' ').append(attribute.key));
      Text("=\"");
      Text(EscapeAttribute(attribute.value));
      Text("\"");
    }
    Control(kSepMark);
  }

  void Close(std::string_view tag) {
    Control(kCloseMark);
    Text(tag);
    Control(kSepMark);
  }

  void EndMessage() {
    Close(kMessageTag);
    Control(kEndOfMessage);
  }

  void Text(std::string_view text) {
    if (!text.empty()) segments_.push_back({std::string(text), Specials::kPlain});
  }

  void Text(const std::vector<std::string>& parts) {
    for (const std::string& part : parts) Text(part);
  }

  std::vector<Segment> Take() { return std::move(segments_); }

 private:
  void Control(std::string_view spelling) {
    segments_.push_back({std::string(spelling), Specials::kAllowed});
  }

  std::vector<Segment> segments_;
};

// ---- what the system says ----

void SystemNote(std::string_view type, const std::string& body, Markup* out) {
  out->Open(kMessageTag, {{"role", "system"}, {"type", type}});
  out->Text(body);
  out->EndMessage();
}

std::string JsonFence(const Json& json) {
  std::string fence = "```json\n";
  fence += DumpPython(json, JsonStyle::kSortedCompact);
  return fence += "\n```";
}

void DeclareTools(const Json& tools, Markup* out) {
  if (tools.empty()) return;
  SystemNote(
      "tool-declare",
      "# Tools\nHere are the available tools, described in JSONSchema.\n\n" + JsonFence(tools),
      out);
}

void DeclareNewTools(const Json& tools, Markup* out) {
  if (tools.empty()) return;
  SystemNote("tool-declare",
             "## New Tools Available\n"
             "The system dynamically extends the toolset via lazy-loading.\n"
             "You have access to all existing and extended tools.\n"
             "Here are the specs for the extended tools.\n\n" +
                 JsonFence(tools),
             out);
}

void StateEffort(ReasoningEffort effort, Markup* out) {
  if (effort == ReasoningEffort::kNone) return;
  constexpr std::array kNames = {"none", "low", "high", "max"};
  // The text names `medium` too, as the release's does; the model has no such effort.
  SystemNote("thinking-effort",
             std::string("`thinking_effort` guides on how much to think in your thinking channel "
                         "(not including the response channel), supported values include `low`, "
                         "`medium`, `high`, and `max`.\nNow the system is invoked with "
                         "`thinking_effort=") +
                 kNames.at(static_cast<size_t>(effort)) + "`.",
             out);
}

void StateToolChoice(ToolChoice choice, Markup* out) {
  if (choice == ToolChoice::kRequired) {
    SystemNote("tool-choice",
               "The system is invoked with `tool_choice=required`.\n"
               "You MUST call tools in the next message.",
               out);
  } else if (choice == ToolChoice::kNone) {
    SystemNote("tool-choice",
               "The system is invoked with `tool_choice=none`.\n"
               "You MUST NOT call any tools in the next message.",
               out);
  }
}

void StateResponseFormat(const ChatRequest& request, Markup* out) {
  if (request.response_format == ResponseFormat::kText) return;
  const bool has_schema = request.response_format == ResponseFormat::kJsonSchema;
  std::string body = std::string("The system is invoked with `response_format=") +
                     (has_schema ? "json_schema" : "json_object") +
                     "`.\nYour response must be raw JSON data without markdown code blocks "
                     "(```json) or any additional formatting.";
  if (has_schema) {
    body += "\nThe JSON data must match the following schema:\n" + JsonFence(request.schema);
  }
  SystemNote("response-format", body, out);
}

// ---- the messages ----

std::string_view JsonTypeName(const Json& value) {
  if (value.is_string()) return "string";
  if (value.is_boolean()) return "boolean";
  if (value.is_null()) return "null";
  if (value.is_object()) return "object";
  if (value.is_array()) return "array";
  return "number";
}

void RenderCall(const HistoryCall& call, size_t index, Markup* out) {
  out->Open(kCallTag, {{"tool", call.name}, {"index", std::to_string(index)}});
  if (call.invalid_arguments) {
    out->Open(kJsonTag, {{"type", "object"}});
    out->Text(*call.invalid_arguments);
    out->Close(kJsonTag);
  } else {
    for (const auto& [key, value] : call.arguments.items()) {
      out->Open(kArgumentTag, {{"key", key}, {"type", JsonTypeName(value)}});
      out->Text(value.is_string() ? value.get<std::string>()
                                  : DumpPython(value, JsonStyle::kDefault));
      out->Close(kArgumentTag);
    }
  }
  out->Close(kCallTag);
}

void RenderAssistant(const ChatMessage& message, bool thinking, Markup* out) {
  out->Open(kMessageTag, {{"role", "assistant"}});
  if (thinking) {  // the element is there even when it is empty
    out->Open(kThinkTag);
    if (!IsBlank(message.reasoning)) out->Text(message.reasoning);
    out->Close(kThinkTag);
  }
  out->Open(kResponseTag);
  out->Text(message.content);
  out->Close(kResponseTag);
  if (!message.calls.empty()) {
    out->Open(kToolsTag);
    for (size_t i = 0; i < message.calls.size(); ++i) RenderCall(message.calls[i], i + 1, out);
    out->Close(kToolsTag);
  }
  out->EndMessage();
}

// A user's or the system's.
void RenderSpoken(std::string_view role, const ChatMessage& message, Markup* out) {
  if (message.name.empty()) {
    out->Open(kMessageTag, {{"role", role}});
  } else {
    out->Open(kMessageTag, {{"role", role}, {"name", message.name}});
  }
  out->Text(message.content);
  out->EndMessage();
}

void RenderMessage(const ChatMessage& message, bool thinking, Markup* out) {
  switch (message.role) {
    case ChatRole::kSystem:
      DeclareNewTools(message.new_tools, out);
      if (message.new_tools.empty() || !message.content.empty())
        RenderSpoken("system", message, out);
      return;
    case ChatRole::kUser:
      return RenderSpoken("user", message, out);
    case ChatRole::kAssistant:
      return RenderAssistant(message, thinking, out);
    case ChatRole::kTool:
      out->Open(
          kMessageTag,
          {{"role", "tool"}, {"tool", message.name}, {"index", std::to_string(message.index)}});
      out->Text(message.content);
      return out->EndMessage();
  }
  DF_CHECK(false);
}

RenderedChat Render(const ChatRequest& request) {
  Markup out;
  DeclareTools(request.tools, &out);
  if (request.thinking) StateEffort(request.effort, &out);
  for (const ChatMessage& message : request.messages) {
    RenderMessage(message, request.thinking, &out);
  }
  StateToolChoice(request.tool_choice, &out);
  StateResponseFormat(request, &out);
  out.Open(kMessageTag, {{"role", "assistant"}});
  out.Open(request.thinking ? kThinkTag : kResponseTag);
  return {out.Take(), request.thinking};
}

}  // namespace

std::string RenderedChat::Text() const {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

std::vector<TokenId> RenderedChat::Encode(const Tokenizer& tokenizer) const {
  std::vector<TokenId> ids;
  for (const Segment& segment : segments) {
    const std::vector<TokenId> more = tokenizer.Encode(segment.text, segment.specials);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

RenderedChat RenderChat(std::string_view request_json) {
  return Render(ParseChatRequest(request_json));
}

RenderedChat RenderChat(std::string_view request_json, const ChatOverrides& overrides) {
  return Render(ParseChatRequest(request_json, overrides));
}

RenderedChat RenderSimpleChat(const SimpleChat& chat) {
  ChatRequest request;
  request.effort = chat.effort;
  request.thinking = chat.thinking;
  const auto say = [&](ChatRole role, const std::string& text) {
    ChatMessage& message = request.messages.emplace_back();
    message.role = role;
    message.content = {text};
  };
  if (!chat.system.empty()) say(ChatRole::kSystem, chat.system);
  say(ChatRole::kUser, chat.user);
  return Render(request);
}

}  // namespace deltafin
