#include "server/responses_request.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "server/api_error.h"

namespace deltafin {
namespace {

// A place in the chat request that was made of a place in this one.
struct Renamed {
  std::string chat;
  std::string own;
};

void ReplaceAll(const Renamed& names, std::string* text) {
  for (size_t at = 0; (at = text->find(names.chat, at)) != std::string::npos;) {
    text->replace(at, names.chat.size(), names.own);
    at += names.own.size();
  }
}

[[noreturn]] void Unsupported(const std::string& path, const std::string& why) {
  throw ApiError(400, path + ": " + why, path, "unsupported");
}

// ---- texts ----

// The text of a part of a content.
std::string PartText(const Json& part, const std::string& path) {
  const std::string expected = "an object of type \"input_text\" or \"output_text\"";
  if (!part.is_object()) throw ApiError(400, path + ": expected " + expected, path);
  JsonFields fields(part, path);
  const std::string type = fields.String("type").value_or("");
  for (const std::string_view media : {"image", "video", "audio", "file"}) {
    if (type.find(media) == std::string::npos) continue;
    Unsupported(path, format("this program reads text only, got a part of the kind {}", media));
  }
  if (type != "input_text" && type != "output_text" && type != "reasoning_text" &&
      type != "summary_text") {
    fields.Bad("type", "\"input_text\" or \"output_text\"");
  }
  const std::optional<std::string> text = fields.String("text");
  if (!text) fields.Bad("text", "a string");
  return *text;
}

// A text, or an array of parts, as the content of a chat message.
Json Content(const std::string& name, JsonFields* fields) {
  const Json* content = fields->Find(name);
  if (content != nullptr && content->is_string()) return *content;
  if (content == nullptr || !content->is_array())
    fields->Bad(name, "a string or an array of parts");
  Json parts = Json::array();
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string text = PartText((*content)[i], format("{}[{}]", fields->PathOf(name), i));
    parts.push_back({{"type", "text"}, {"text", text}});
  }
  return parts;
}

// ---- the conversation ----

// Items of the input as messages of a chat: reasoning, text and calls that follow one another are
// one message of the assistant.
class Conversation {
 public:
  void AddInstructions(const std::string& text) {
    Add({{"role", "system"}, {"content", text}}, "instructions");
  }

  void AddItem(const Json& item, const std::string& path) {
    if (!item.is_object()) throw ApiError(400, path + ": expected an object", path);
    JsonFields fields(item, path);
    const std::string type = fields.String("type").value_or("message");
    if (type == "message") {
      AddMessage(path, &fields);
    } else if (type == "reasoning") {
      AddReasoning(path, &fields);
    } else if (type == "function_call") {
      AddCall(path, &fields);
    } else if (type == "function_call_output") {
      const std::string id = fields.String("call_id").value_or("");
      if (call_ids_.count(id) == 0) {
        fields.Bad("call_id", "the call_id of a function_call of the assistant's before it");
      }
      Add({{"role", "tool"}, {"tool_call_id", id}, {"content", Content("output", &fields)}}, path);
    } else {
      fields.Bad("type",
                 "\"message\", \"reasoning\", \"function_call\" or \"function_call_output\"");
    }
  }

  Json TakeMessages() { return std::move(messages_); }
  std::vector<Renamed> TakeNames() {
    // What is inside of another name comes before it.
    std::stable_sort(names_.begin(), names_.end(), [](const Renamed& a, const Renamed& b) {
      return a.chat.size() > b.chat.size();
    });
    return std::move(names_);
  }

 private:
  std::string Path() const { return format("messages[{}]", messages_.size() - 1); }
  void Rename(const std::string& member, const std::string& own) {
    names_.push_back({Path() + "." + member, own});
  }
  void Add(Json message, const std::string& own) {
    messages_.push_back(std::move(message));
    names_.push_back({Path(), own});
  }

  void AddMessage(const std::string& path, JsonFields* fields) {
    const std::string role = fields->String("role").value_or("");
    if (role != "system" && role != "developer" && role != "user" && role != "assistant") {
      fields->Bad("role", "\"system\", \"developer\", \"user\" or \"assistant\"");
    }
    Json content = Content("content", fields);
    if (role == "assistant") {
      Assistant({"content", "tool_calls"}, path)["content"] = std::move(content);
    } else {
      Add({{"role", role}, {"content", std::move(content)}}, path);
    }
  }

  void AddReasoning(const std::string& path, JsonFields* fields) {
    fields->Refuse("encrypted_content", "it is not from this server, and nothing here reads it");
    std::string text;
    // A summary is taken where there is nothing else.
    for (const char* name : {"content", "summary"}) {
      const Json* parts = text.empty() ? fields->Array(name) : nullptr;
      for (size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
        text += PartText((*parts)[i], format("{}.{}[{}]", path, name, i));
      }
    }
    Assistant({"reasoning_content", "content", "tool_calls"}, path)["reasoning_content"] = text;
  }

  void AddCall(const std::string& path, JsonFields* fields) {
    const std::string id = fields->String("call_id").value_or("");
    if (id.empty()) fields->Bad("call_id", "the id that the call came with");
    Json call{{"id", id},
              {"type", "function"},
              {"function",
               {{"name", fields->String("name").value_or("")},
                {"arguments", fields->String("arguments").value_or("")}}}};
    Json& calls = Assistant({}, path)["tool_calls"];
    calls.push_back(std::move(call));
    call_ids_.insert(id);
    const std::string at = format("tool_calls[{}]", calls.size() - 1);
    Rename(at + ".function", path);
    Rename(at, path);
  }

  // The message of the assistant that is going on, unless it has one of these already.
  Json& Assistant(std::initializer_list<const char*> members, const std::string& path) {
    const bool goes_on = !messages_.empty() && messages_.back().at("role") == "assistant" &&
                         std::none_of(members.begin(), members.end(), [&](const char* member) {
                           return messages_.back().contains(member);
                         });
    if (!goes_on) {
      Add({{"role", "assistant"}}, path);
      call_ids_.clear();
    }
    return messages_.back();
  }

  Json messages_ = Json::array();
  std::vector<Renamed> names_;
  std::set<std::string> call_ids_;  // of the last message of the assistant
};

void ReadInput(JsonFields* fields, Conversation* conversation) {
  if (const auto instructions = fields->String("instructions")) {
    conversation->AddInstructions(*instructions);
  }
  const Json* input = fields->Find("input");
  if (input != nullptr && input->is_string()) {
    return conversation->AddItem({{"role", "user"}, {"content", *input}}, "input");
  }
  if (input == nullptr || !input->is_array() || input->empty()) {
    fields->Bad("input", "a text, or an array of items");
  }
  for (size_t i = 0; i < input->size(); ++i) {
    conversation->AddItem((*input)[i], format("input[{}]", i));
  }
}

// ---- tools and formats ----

// {"type": "function", "name", ...} as {"type": "function", "function": {"name", ...}}.
Json ChatTool(const Json& tool, const std::string& path) {
  if (!tool.is_object()) throw ApiError(400, path + ": expected an object", path);
  JsonFields fields(tool, path);
  if (fields.String("type").value_or("") != "function") {
    fields.Bad("type", "\"function\": this server has no tools of its own");
  }
  Json function = Json::object();
  for (const auto& [name, value] : tool.items()) {
    if (name != "type" && !value.is_null()) function[name] = value;
  }
  return {{"type", "function"}, {"function", std::move(function)}};
}

void ReadTools(JsonFields* fields, Json* chat, std::vector<Renamed>* names) {
  if (const Json* tools = fields->Array("tools"); tools != nullptr) {
    for (size_t i = 0; i < tools->size(); ++i) {
      (*chat)["tools"].push_back(ChatTool((*tools)[i], format("tools[{}]", i)));
      names->push_back({format("tools[{}].function", i), format("tools[{}]", i)});
    }
  }
  const Json* choice = fields->Find("tool_choice");
  if (choice == nullptr) return;
  Json& chosen = (*chat)["tool_choice"];
  chosen = *choice;
  if (!choice->is_object()) return;
  JsonFields inner(*choice, "tool_choice");
  if (inner.String("type").value_or("") != "function") inner.Bad("type", "\"function\"");
  chosen = {{"type", "function"}, {"function", {{"name", inner.String("name").value_or("")}}}};
  names->push_back({"tool_choice.function.name", "tool_choice.name"});
}

void ReadText(JsonFields* fields, Json* chat, std::vector<Renamed>* names) {
  const Json* text = fields->Object("text");
  if (text == nullptr) return;
  JsonFields inner(*text, "text");
  if (const auto verbosity = inner.String("verbosity"); verbosity && *verbosity != "medium") {
    inner.Refuse("verbosity", "the model has no such setting; say it in the instructions");
  }
  const Json* answer = inner.Object("format");
  fields->AddUnknownOf(inner);
  if (answer == nullptr) return;
  Json& response_format = (*chat)["response_format"];
  names->push_back({"response_format.json_schema", "text.format"});
  names->push_back({"response_format", "text.format"});
  response_format = {{"type", answer->value("type", Json())}};
  if (response_format["type"] != "json_schema") return;
  for (const auto& [name, value] : answer->items()) {
    if (name != "type") response_format["json_schema"][name] = value;
  }
}

void ReadReasoning(JsonFields* fields, Json* chat, std::vector<std::string>* notes) {
  const Json* reasoning = fields->Object("reasoning");
  if (reasoning == nullptr) return;
  JsonFields inner(*reasoning, "reasoning");
  if (const Json* effort = inner.Find("effort"); effort != nullptr) {
    (*chat)["reasoning_effort"] = *effort;
  }
  if (inner.String("summary") || inner.String("generate_summary")) {
    notes->emplace_back(
        "reasoning.summary: nothing is summed up, answers have all of the "
        "reasoning as its content");
  }
  fields->AddUnknownOf(inner);
}

// ---- the rest ----

void RefuseOthers(JsonFields* fields, std::vector<std::string>* notes) {
  const char* stateless = "nothing is kept here; send the whole conversation as input";
  for (const char* name : {"previous_response_id", "conversation"}) {
    fields->Refuse(name, stateless);
  }
  fields->Refuse("prompt", "there are no stored prompts here");
  if (fields->Bool("store").value_or(false)) fields->Refuse("store", stateless);
  if (fields->Bool("background").value_or(false)) {
    fields->Refuse("background", "nothing is kept here; use stream, and wait");
  }
  if (fields->String("truncation").value_or("disabled") != "disabled") {
    fields->Bad("truncation", "\"disabled\": what does not fit is refused");
  }
  if (fields->Int("top_logprobs", 0, 20).value_or(0) != 0) {
    fields->Refuse("top_logprobs", "log probabilities come with chat completions only");
  }
  fields->Refuse("max_tool_calls", "this server has no tools of its own");
  if (const Json* include = fields->Array("include"); include != nullptr) {
    for (const Json& what : *include) {
      if (what != "reasoning.encrypted_content") {
        fields->Refuse("include", "nothing but reasoning.encrypted_content can be asked for");
      }
      notes->emplace_back("include: nothing is encrypted, answers have the reasoning as it is");
    }
  }
  // Fields of chat completions that have another name here.
  fields->Refuse("messages", "use input");
  fields->Refuse("response_format", "use text.format");
  fields->Refuse("reasoning_effort", "use reasoning.effort");
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    fields->Refuse(name, "use max_output_tokens");
  }
  for (const char* name : {"n", "logprobs"}) {
    fields->Refuse(name, "only chat completions have it");
  }
}

Json OrNull(const Json* value) { return value == nullptr ? Json() : *value; }

Json Settings(const ChatCompletionRequest& chat, JsonFields* fields) {
  Json effort;
  if (const Json* reasoning = fields->Object("reasoning"))
    effort = reasoning->value("effort", Json());
  const Json* text = fields->Object("text");
  const Json* tools = fields->Find("tools");
  const Json* choice = fields->Find("tool_choice");
  const Json* metadata = fields->Find("metadata");
  return {{"instructions", OrNull(fields->Find("instructions"))},
          {"max_output_tokens", OrNull(fields->Find("max_output_tokens"))},
          {"metadata", metadata == nullptr ? Json::object() : *metadata},
          {"parallel_tool_calls", fields->Bool("parallel_tool_calls").value_or(true)},
          {"previous_response_id", nullptr},
          {"reasoning", {{"effort", std::move(effort)}, {"summary", nullptr}}},
          {"store", false},
          {"temperature", chat.generation.sampling.temperature},
          {"text", text == nullptr ? Json{{"format", {{"type", "text"}}}} : *text},
          {"tool_choice", choice == nullptr ? Json("auto") : *choice},
          {"tools", tools == nullptr ? Json::array() : *tools},
          {"top_p", chat.generation.sampling.top_p},
          {"truncation", "disabled"}};
}

}  // namespace

ResponsesRequest ReadResponsesRequest(const std::string& body, const RequestLimits& limits) {
  const Json json = ParseRequestBody(body);
  JsonFields fields(json, "");
  ResponsesRequest request;
  std::vector<std::string> notes;
  RefuseOthers(&fields, &notes);
  Conversation conversation;
  ReadInput(&fields, &conversation);
  Json chat{{"messages", conversation.TakeMessages()}};
  std::vector<Renamed> names = conversation.TakeNames();
  ReadTools(&fields, &chat, &names);
  ReadText(&fields, &chat, &names);
  ReadReasoning(&fields, &chat, &notes);
  names.push_back({"reasoning_effort", "reasoning.effort"});
  names.push_back({"max_completion_tokens", "max_output_tokens"});
  if (const Json* tokens = fields.Find("max_output_tokens"); tokens != nullptr) {
    chat["max_completion_tokens"] = *tokens;
  }
  for (const char* name : {"model", "stream", "temperature", "top_p", "top_k", "min_p",
                           "presence_penalty", "frequency_penalty", "repetition_penalty",
                           "logit_bias", "seed", "stop", "parallel_tool_calls"}) {
    if (const Json* value = fields.Find(name); value != nullptr) chat[name] = *value;
  }
  for (const char* name : {"user", "safety_identifier", "metadata", "prompt_cache_key",
                           "prompt_cache_retention", "service_tier", "stream_options"}) {
    fields.Accept(name);
  }
  try {
    request.chat = ReadChatRequest(DumpJson(chat), limits);
  } catch (const ApiError& error) {
    std::string message = error.what();
    std::string param = error.param();
    for (const Renamed& renamed : names) {
      ReplaceAll(renamed, &message);
      ReplaceAll(renamed, &param);
    }
    throw ApiError(error.status(), message, param, error.code());
  }
  for (std::string& note : request.chat.notes) {
    for (const Renamed& renamed : names) ReplaceAll(renamed, &note);
    notes.push_back(std::move(note));
  }
  request.chat.notes = std::move(notes);
  request.chat.ignored = fields.unknown();
  request.settings = Settings(request.chat, &fields);
  return request;
}

}  // namespace deltafin
