#include "text/chat_request.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/format.h"
#include "text/python_json.h"
#include "text/request_fields.h"

namespace deltafin {
namespace {

const std::string& TextOf(const Json& value) { return value.get_ref<const std::string&>(); }

// ---- messages ----

ChatRole ParseRole(const Json& message, const std::string& path) {
  const Json* role = FindField(message, "role");
  const std::string name = role != nullptr && role->is_string() ? TextOf(*role) : "";
  if (name == "system" || name == "developer") return ChatRole::kSystem;
  if (name == "user") return ChatRole::kUser;
  if (name == "assistant") return ChatRole::kAssistant;
  if (name == "tool") return ChatRole::kTool;
  BadField(path + ".role", "one of \"system\", \"developer\", \"user\", \"assistant\", \"tool\"",
           role);
}

std::string ParseContentPart(const Json& part, const std::string& path) {
  if (!part.is_object()) BadField(path, "an object with type \"text\"", &part);
  const Json* type = FindField(part, "type");
  if (type == nullptr || !type->is_string()) BadField(path + ".type", "\"text\"", type);
  const std::string& kind = TextOf(*type);
  if (kind != "text") {
    for (const std::string_view media : {"image", "video", "audio", "file"}) {
      if (kind.find(media) == std::string::npos) continue;
      throw Error(
          ErrorCode::kUnsupported,
          format("{}: this program reads text only, got a part of the kind {}; leave it out", path,
                 media));
    }
    BadField(path + ".type", "\"text\"", type);
  }
  const Json* text = FindField(part, "text");
  if (text == nullptr || !text->is_string()) BadField(path + ".text", "a string", text);
  return TextOf(*text);
}

std::vector<std::string> NonEmpty(std::vector<std::string> texts) {
  texts.erase(std::remove(texts.begin(), texts.end(), ""), texts.end());
  return texts;
}

std::vector<std::string> ParseContent(const Json& message, bool may_be_absent,
                                      const std::string& message_path) {
  const std::string path = message_path + ".content";
  const Json* content = FindField(message, "content");
  if (content == nullptr && may_be_absent) return {};
  if (content != nullptr && content->is_string()) return NonEmpty({TextOf(*content)});
  if (content == nullptr || !content->is_array()) {
    BadField(path, "a string or an array of parts", content);
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < content->size(); ++i) {
    texts.push_back(ParseContentPart((*content)[i], format("{}[{}]", path, i)));
  }
  return NonEmpty(std::move(texts));
}

// Sets `arguments` or `invalid_arguments`.
void ParseArguments(const Json& function, const std::string& path, HistoryCall* call) {
  const Json* arguments = FindField(function, "arguments");
  if (arguments == nullptr) return;
  if (arguments->is_object()) {
    call->arguments = *arguments;
    return;
  }
  if (!arguments->is_string()) BadField(path, "an object or its JSON text", arguments);
  if (IsBlank(TextOf(*arguments))) return;
  try {
    call->arguments = ParsePythonJson(TextOf(*arguments), path);
  } catch (const Error&) {
    call->invalid_arguments = TextOf(*arguments);  // what the model wrote then, shown to it again
    return;
  }
  if (!call->arguments.is_object()) BadField(path, "the JSON text of an object", arguments);
}

HistoryCall ParseCall(const Json& json, const std::string& path) {
  if (!json.is_object()) BadField(path, "an object", &json);
  HistoryCall call;
  call.id = StringField(json, "id", path);
  const std::string type = StringField(json, "type", path);
  if (!type.empty() && type != "function") {
    BadField(path + ".type", "\"function\"", FindField(json, "type"));
  }
  const Json* function = FindField(json, "function");
  if (function == nullptr || !function->is_object()) {
    BadField(path + ".function", "an object with name and arguments", function);
  }
  call.name = StringField(*function, "name", path + ".function");
  if (call.name.empty()) {
    BadField(path + ".function.name", "the name of a tool", FindField(*function, "name"));
  }
  ParseArguments(*function, path + ".function.arguments", &call);
  return call;
}

// An array of tool declarations; they reach the model as they are.
Json ParseTools(const Json& owner, const std::string& path) {
  const Json* tools = ArrayField(owner, "tools", path);
  if (tools == nullptr) return Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    if (!tool.is_object()) {
      BadField(format("{}[{}]", FieldPath(path, "tools"), i), "an object", &tool);
    }
  }
  return *tools;
}

ChatMessage ParseMessage(const Json& json, const std::string& path) {
  if (!json.is_object()) BadField(path, "an object with role and content", &json);
  ChatMessage message;
  message.role = ParseRole(json, path);
  message.name = StringField(json, "name", path);
  bool content_may_be_absent = false;
  switch (message.role) {
    case ChatRole::kUser:
      break;
    case ChatRole::kSystem:
      message.new_tools = ParseTools(json, path);
      content_may_be_absent = !message.new_tools.empty();
      break;
    case ChatRole::kTool:
      if (std::string tool = StringField(json, "tool", path); !tool.empty()) {
        message.name = std::move(tool);
      }
      content_may_be_absent = true;
      break;
    case ChatRole::kAssistant: {
      message.reasoning = StringField(json, "reasoning_content", path);
      std::string reasoning = StringField(json, "reasoning", path);
      if (message.reasoning.empty()) message.reasoning = std::move(reasoning);
      content_may_be_absent = true;
      if (const Json* calls = ArrayField(json, "tool_calls", path); calls != nullptr) {
        for (size_t i = 0; i < calls->size(); ++i) {
          message.calls.push_back(ParseCall((*calls)[i], format("{}.tool_calls[{}]", path, i)));
        }
      }
      break;
    }
  }
  message.content = ParseContent(json, content_may_be_absent, path);
  return message;
}

// ---- tool messages ----

// The calls of an assistant message, for the tool messages that answer them.
struct AnsweredCalls {
  explicit AnsweredCalls(const std::vector<HistoryCall>& calls) {
    for (const HistoryCall& call : calls) {
      if (!call.id.empty()) position_of.emplace(call.id, names.size());
      names.push_back(call.name);
    }
  }

  std::vector<std::string> names;
  std::unordered_map<std::string, size_t> position_of;  // by id
};

// Tool messages that follow one another.
struct ToolRun {
  size_t begin = 0;  // in ChatRequest::messages
  std::vector<std::string> call_ids;
};

// When every id of the run is known: brings the messages into the order of the calls and gives them
// the names of the calls.
void SortToolRun(const ToolRun& run, const AnsweredCalls& calls,
                 std::vector<ChatMessage>* messages) {
  std::vector<std::pair<size_t, ChatMessage>> sorted;
  for (const std::string& id : run.call_ids) {
    const auto it = calls.position_of.find(id);
    if (it == calls.position_of.end()) return;
    sorted.emplace_back(it->second, ChatMessage());
  }
  for (size_t i = 0; i < sorted.size(); ++i) {
    sorted[i].second = std::move((*messages)[run.begin + i]);
    sorted[i].second.name = calls.names[sorted[i].first];
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    (*messages)[run.begin + i] = std::move(sorted[i].second);
  }
}

// `position`: tool messages before this one since the assistant's.
void NumberToolMessage(size_t position, const AnsweredCalls& calls, const std::string& path,
                       ChatMessage* message) {
  message->index = static_cast<int>(position) + 1;
  if (!message->name.empty()) return;
  if (position >= calls.names.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}.tool_call_id: expected the id of a call in the assistant message before "
                       "it, or the tool's name in {}.name, got neither",
                       path, path));
  }
  message->name = calls.names[position];
}

void ResolveToolMessages(const Json& json, std::vector<ChatMessage>* messages) {
  AnsweredCalls calls({});
  size_t num_since_assistant = 0;
  for (size_t i = 0; i < messages->size();) {
    const ChatMessage& message = (*messages)[i];
    if (message.role == ChatRole::kAssistant) {
      calls = AnsweredCalls(message.calls);
      num_since_assistant = 0;
    }
    ToolRun run{i, {}};
    for (; i < messages->size() && (*messages)[i].role == ChatRole::kTool; ++i) {
      run.call_ids.push_back(StringField(json[i], "tool_call_id", format("messages[{}]", i)));
    }
    SortToolRun(run, calls, messages);
    for (size_t k = run.begin; k < i; ++k) {
      NumberToolMessage(num_since_assistant++, calls, format("messages[{}]", k), &(*messages)[k]);
    }
    if (run.call_ids.empty()) ++i;
  }
}

// ---- the other fields ----

std::string ToolName(const Json& tool) {
  const Json* function = FindField(tool, "function");
  const Json* name =
      FindField(function != nullptr && function->is_object() ? *function : tool, "name");
  return name != nullptr && name->is_string() ? TextOf(*name) : "";
}

// Keeps only the declarations of `name`.
void KeepTool(const std::string& name, Json* tools) {
  Json kept = Json::array();
  for (Json& tool : *tools) {
    if (ToolName(tool) == name) kept.push_back(std::move(tool));
  }
  *tools = std::move(kept);
}

// The format cannot say which tool must be called: the named one becomes the only one declared.
void ChooseNamedTool(const Json& choice, ChatRequest* request) {
  const Json* function = FindField(choice, "function");
  const Json* name =
      function != nullptr && function->is_object() ? FindField(*function, "name") : nullptr;
  const std::string wanted = name != nullptr && name->is_string() ? TextOf(*name) : "";
  request->tool_choice = ToolChoice::kRequired;
  KeepTool(wanted, &request->tools);
  bool is_declared = !request->tools.empty();
  std::vector<ChatMessage>& messages = request->messages;
  const auto is_left_empty = [&](ChatMessage& message) {
    if (message.new_tools.empty()) return false;
    KeepTool(wanted, &message.new_tools);
    is_declared = is_declared || !message.new_tools.empty();
    return message.new_tools.empty() && message.content.empty();
  };
  messages.erase(std::remove_if(messages.begin(), messages.end(), is_left_empty), messages.end());
  if (wanted.empty() || !is_declared) {
    BadField("tool_choice.function.name", "the name of a function in tools", name);
  }
}

void ParseToolChoice(const Json& json, ChatRequest* request) {
  const Json* choice = FindField(json, "tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) return ChooseNamedTool(*choice, request);
  const std::string name = choice->is_string() ? TextOf(*choice) : "";
  if (name == "auto") {
    request->tool_choice = ToolChoice::kAuto;
  } else if (name == "none") {
    request->tool_choice = ToolChoice::kNone;
  } else if (name == "required") {
    request->tool_choice = ToolChoice::kRequired;
  } else {
    BadField("tool_choice", "\"auto\", \"none\", \"required\" or an object that names a function",
             choice);
  }
}

ReasoningEffort ParseEffort(const Json& effort) {
  static const std::unordered_map<std::string, ReasoningEffort> kEfforts = {
      {"none", ReasoningEffort::kNone},
      {"low", ReasoningEffort::kLow},
      {"high", ReasoningEffort::kHigh},
      {"max", ReasoningEffort::kMax}};
  const auto it = kEfforts.find(effort.is_string() ? TextOf(effort) : "");
  if (it == kEfforts.end()) {
    BadField("reasoning_effort", "one of \"none\", \"low\", \"high\", \"max\"", &effort);
  }
  return it->second;
}

void ParseThinking(const Json& json, const ChatOverrides& overrides, ChatRequest* request) {
  std::optional<ReasoningEffort> effort = overrides.effort;
  if (!effort) {
    const Json* field = FindField(json, "reasoning_effort");
    if (field != nullptr) effort = ParseEffort(*field);
  }
  if (effort) {
    request->effort = *effort;
    request->thinking = *effort != ReasoningEffort::kNone;
  }
  if (overrides.thinking) {
    request->thinking = *overrides.thinking;
  } else if (const Json* thinking = FindField(json, "thinking"); thinking != nullptr) {
    if (!thinking->is_boolean()) BadField("thinking", "true or false", thinking);
    request->thinking = thinking->get<bool>();
  }
}

void ParseResponseFormat(const Json& json, ChatRequest* request) {
  const Json* response_format = FindField(json, "response_format");
  if (response_format == nullptr) return;
  if (!response_format->is_object()) BadField("response_format", "an object", response_format);
  const Json* type = FindField(*response_format, "type");
  const std::string name = type != nullptr && type->is_string() ? TextOf(*type) : "";
  if (name == "text") return;
  if (name == "json_object") {
    request->response_format = ResponseFormat::kJsonObject;
  } else if (name == "json_schema") {
    request->response_format = ResponseFormat::kJsonSchema;
    const Json* wrapper = FindField(*response_format, "json_schema");
    if (wrapper == nullptr || !wrapper->is_object()) {
      BadField("response_format.json_schema", "an object with a schema", wrapper);
    }
    const Json* schema = FindField(*wrapper, "schema");
    if (schema == nullptr || !schema->is_object()) {
      BadField("response_format.json_schema.schema", "a JSON schema object", schema);
    }
    request->schema = *schema;
  } else {
    BadField("response_format.type", "one of \"text\", \"json_object\", \"json_schema\"", type);
  }
}

Json ParseRequestJson(std::string_view text) {
  try {
    return ParsePythonJson(text, "request");
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, error.what());
  }
}

}  // namespace

ChatRequest ParseChatRequest(std::string_view request_json, const ChatOverrides& overrides) {
  const Json json = ParseRequestJson(request_json);
  if (!json.is_object()) BadField("request", "an object with messages", &json);
  const Json* messages = ArrayField(json, "messages", "");
  if (messages == nullptr || messages->empty()) {
    BadField("messages", "an array of at least one message", messages);
  }
  ChatRequest request;
  for (size_t i = 0; i < messages->size(); ++i) {
    request.messages.push_back(ParseMessage((*messages)[i], format("messages[{}]", i)));
  }
  ResolveToolMessages(*messages, &request.messages);
  request.tools = ParseTools(json, "");
  ParseToolChoice(json, &request);
  ParseThinking(json, overrides, &request);
  ParseResponseFormat(json, &request);
  return request;
}

}  // namespace deltafin
