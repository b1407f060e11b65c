#include "server/chat_request.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "server/api_error.h"

namespace deltafin {
namespace {

struct Thinking {
  ReasoningEffort effort = ReasoningEffort::kMax;
  bool on = true;
};

ReasoningEffort ReadEffort(JsonFields* fields, std::vector<std::string>* notes) {
  const std::string name = fields->String("reasoning_effort").value_or("max");
  const auto instead = [&](const char* used) {
    notes->push_back(
        format("reasoning_effort {} is taken as {}: the model has none, low, high "
               "and max",
               name, used));
  };
  if (name == "none") return ReasoningEffort::kNone;
  if (name == "low") return ReasoningEffort::kLow;
  if (name == "high") return ReasoningEffort::kHigh;
  if (name == "max") return ReasoningEffort::kMax;
  if (name == "minimal") {
    instead("low");
    return ReasoningEffort::kLow;
  }
  if (name == "medium") {
    instead("high");
    return ReasoningEffort::kHigh;
  }
  if (name == "xhigh") {
    instead("max");
    return ReasoningEffort::kMax;
  }
  fields->Bad("reasoning_effort", "\"none\", \"low\", \"high\" or \"max\"");
}

// `thinking` as true or false, or as {"type": "enabled"}; or where other servers look for it.
std::optional<bool> ReadThinkingSwitch(JsonFields* fields) {
  std::optional<bool> on;
  if (const Json* kwargs = fields->Object("chat_template_kwargs"); kwargs != nullptr) {
    JsonFields inner(*kwargs, "chat_template_kwargs");
    on = inner.Bool("thinking");
    if (const std::optional<bool> other = inner.Bool("enable_thinking"); other) on = other;
    for (const std::string& name : inner.unknown()) {
      inner.Refuse(name, "the chat format has no such option; use thinking");
    }
  }
  const Json* value = fields->Find("thinking");
  if (value == nullptr) return on;
  if (value->is_boolean()) return value->get<bool>();
  const std::string expected = "true, false, or an object with type \"enabled\" or \"disabled\"";
  if (!value->is_object()) fields->Bad("thinking", expected);
  JsonFields inner(*value, "thinking");
  const std::string type = inner.String("type").value_or("");
  if (type != "enabled" && type != "disabled") fields->Bad("thinking", expected);
  fields->AddUnknownOf(inner);
  return type == "enabled";
}

Thinking ReadThinking(JsonFields* fields, std::vector<std::string>* notes) {
  Thinking thinking;
  thinking.effort = ReadEffort(fields, notes);
  thinking.on = ReadThinkingSwitch(fields).value_or(thinking.effort != ReasoningEffort::kNone);
  return thinking;
}

RenderedChat Render(const std::string& body, JsonFields* fields, const Thinking& thinking) {
  for (const char* name : {"messages", "tools", "tool_choice", "response_format"}) {
    fields->Accept(name);
  }
  try {
    return RenderChat(body, {thinking.effort, thinking.on});
  } catch (const Error& error) {
    throw RequestError(error);
  }
}

// ---- what the answer must look like ----

// A declared tool, and where.
struct DeclaredTool {
  std::string path;  // of the function
  std::string name;
  const Json* parameters = nullptr;
  bool strict = false;
};

void ReadTools(const Json& tools, const std::string& path, std::vector<DeclaredTool>* out) {
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string at = format("{}[{}]", path, i);
    JsonFields tool(tools[i], at);
    const std::string type = tool.String("type").value_or("function");
    if (type != "function") tool.Bad("type", "\"function\"");
    const Json* function = tool.Object("function");
    if (function == nullptr) tool.Bad("function", "an object with a name");
    JsonFields fields(*function, at + ".function");
    DeclaredTool declared;
    declared.path = at + ".function";
    declared.name = fields.String("name").value_or("");
    if (declared.name.empty()) fields.Bad("name", "the name of the function");
    declared.parameters = fields.Object("parameters");
    declared.strict = fields.Bool("strict").value_or(false);
    out->push_back(std::move(declared));
  }
}

// Of the request, and of system messages. The renderer has checked that they are arrays of objects.
std::vector<DeclaredTool> AllTools(const Json& request) {
  std::vector<DeclaredTool> all;
  if (const auto tools = request.find("tools"); tools != request.end() && !tools->is_null()) {
    ReadTools(*tools, "tools", &all);
  }
  const Json& messages = request.at("messages");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = messages[i].at("role").get<std::string>();
    if (role != "system" && role != "developer") continue;
    const auto tools = messages[i].find("tools");
    if (tools == messages[i].end() || tools->is_null()) continue;
    ReadTools(*tools, format("messages[{}].tools", i), &all);
  }
  return all;
}

// A function whose schema goes beyond what can be enforced is called with any arguments, unless it
// is strict.
ToolShape ShapeOf(const DeclaredTool& tool) {
  ToolShape shape{tool.name, nullptr};
  if (tool.parameters == nullptr) return shape;
  try {
    shape.arguments = CompileSchema(*tool.parameters, tool.path + ".parameters");
  } catch (const Error& error) {
    if (tool.strict) throw ApiError(400, error.what(), tool.path + ".parameters", "unsupported");
  }
  return shape;
}

std::shared_ptr<const JsonSchema> ReadResponseFormat(const Json& request) {
  const auto format = request.find("response_format");
  if (format == request.end() || format->is_null()) return nullptr;
  const std::string type = format->at("type").get<std::string>();
  if (type == "json_object") return AnyObjectSchema();
  if (type != "json_schema") return nullptr;
  const std::string path = "response_format.json_schema.schema";
  try {
    return CompileSchema(format->at("json_schema").at("schema"), path);
  } catch (const Error& error) {
    throw ApiError(400, error.what(), path,
                   error.code() == ErrorCode::kUnsupported ? "unsupported" : "");
  }
}

std::shared_ptr<const ShapeOptions> ReadShape(const Json& request, JsonFields* fields,
                                              bool thinking) {
  auto shape = std::make_shared<ShapeOptions>();
  shape->thinking = thinking;
  shape->content = ReadResponseFormat(request);
  std::vector<DeclaredTool> tools = AllTools(request);
  const bool parallel = fields->Bool("parallel_tool_calls").value_or(true);
  bool is_needed = shape->content != nullptr || (!tools.empty() && !parallel);
  shape->max_calls = parallel ? INT32_MAX : 1;
  if (const Json* choice = fields->Find("tool_choice"); choice != nullptr && *choice != "auto") {
    if (choice->is_object()) {
      const std::string name = choice->at("function").at("name").get<std::string>();
      std::erase_if(tools, [&](const DeclaredTool& tool) { return tool.name != name; });
    }
    if (*choice == "none") {
      is_needed = is_needed || !tools.empty();
      shape->max_calls = 0;
    } else {
      if (tools.empty())
        fields->Bad("tool_choice", "\"none\" or \"auto\" where there are no tools");
      is_needed = true;
      shape->min_calls = 1;
    }
  }
  for (const DeclaredTool& tool : tools) is_needed = is_needed || tool.strict;
  if (!is_needed) return nullptr;
  for (const DeclaredTool& tool : tools) shape->tools.push_back(ShapeOf(tool));
  return shape;
}

// ---- the rest ----

int64_t ReadLogprobs(JsonFields* fields) {
  const bool wanted = fields->Bool("logprobs").value_or(false);
  const std::optional<int64_t> top = fields->Int("top_logprobs", 0, 20);
  if (top && !wanted) fields->Bad("top_logprobs", "nothing without \"logprobs\": true");
  return wanted ? top.value_or(0) : -1;
}

void RefuseOthers(JsonFields* fields) {
  fields->Refuse("functions", "use tools, which took its place");
  fields->Refuse("function_call", "use tool_choice, which took its place");
  fields->Refuse("audio", "this program writes text only");
  fields->Refuse("web_search_options", "this program searches nothing");
  if (const Json* kinds = fields->Array("modalities"); kinds != nullptr) {
    for (const Json& kind : *kinds) {
      if (kind != "text") fields->Bad("modalities", "[\"text\"]");
    }
  }
}

}  // namespace

ChatCompletionRequest ReadChatRequest(const std::string& body, const RequestLimits& limits) {
  const Json json = ParseRequestBody(body);
  JsonFields fields(json, "");
  ChatCompletionRequest request;
  request.generation = ReadGenerationFields(&fields, limits);
  const std::optional<int64_t> old_name = ReadMaxTokens(&fields, "max_tokens", 1, limits);
  const std::optional<int64_t> new_name =
      ReadMaxTokens(&fields, "max_completion_tokens", 1, limits);
  request.top_logprobs = ReadLogprobs(&fields);
  RefuseOthers(&fields);
  const Thinking thinking = ReadThinking(&fields, &request.notes);
  request.thinking = thinking.on;
  const RenderedChat chat = Render(body, &fields, thinking);
  request.shape = ReadShape(json, &fields, thinking.on);
  request.prompt = EncodeChat(chat, *limits.tokenizer);
  // An answer ends by itself.
  request.max_new_tokens = NewTokens(new_name ? new_name : old_name, INT64_MAX,
                                     static_cast<int64_t>(request.prompt.ids.size()), limits);
  request.ignored = fields.unknown();
  return request;
}

ChatPrompt ReadChatPrompt(const std::string& body, JsonFields* fields,
                          const RequestLimits& limits) {
  std::vector<std::string> notes;
  const Thinking thinking = ReadThinking(fields, &notes);
  return EncodeChat(Render(body, fields, thinking), *limits.tokenizer);
}

}  // namespace deltafin
