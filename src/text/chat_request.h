// An OpenAI chat request, checked and brought into the form that the renderer writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/chat.h"
#include "deltafin/json.h"

namespace deltafin {

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool };
enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };
enum class ResponseFormat : uint8_t { kText, kJsonObject, kJsonSchema };

// A call in an assistant message of the history.
struct HistoryCall {
  std::string id;
  std::string name;
  Json arguments = Json::object();
  std::optional<std::string> invalid_arguments;  // in place of `arguments`: text that is not JSON
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string name;                  // of the speaker; of the tool in a tool message
  std::vector<std::string> content;  // one per text part; none is empty
  std::string reasoning;             // assistant
  std::vector<HistoryCall> calls;    // assistant
  Json new_tools = Json::array();    // system: tools that exist from here on
  int index = 0;                     // tool: counts the tool messages since the assistant's, from 1
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  Json tools = Json::array();
  ToolChoice tool_choice = ToolChoice::kAuto;
  ResponseFormat response_format = ResponseFormat::kText;
  Json schema;  // of kJsonSchema
  ReasoningEffort effort = ReasoningEffort::kMax;
  bool thinking = true;
};

// Throws Error: kInvalidArgument, or kUnsupported for images and other media.
ChatRequest ParseChatRequest(std::string_view request_json, const ChatOverrides& overrides = {});

}  // namespace deltafin
