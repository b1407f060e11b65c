#include "text/tool_call_builder.h"

#include <algorithm>

#include "text/python_json.h"
#include "text/request_fields.h"

namespace deltafin {
namespace {

// The model's own JSON text is kept where it is valid: no digit of a number changes.
std::string ValueAsJson(const std::string& type, const std::string& text) {
  if (type != "string") {
    try {
      ParsePythonJson(text, "argument");
      const size_t begin = text.find_first_not_of(" \t\r\n");
      return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
    } catch (const Error&) {
      return QuotePython(text);  // e.g. None, or a bare word
    }
  }
  return QuotePython(text);
}

}  // namespace

void ToolCallBuilder::AddArgument(const ChatTag& tag, const std::string& text) {
  all_text_ += text;
  const std::string key = tag.Attribute("key");
  if (key.empty()) {
    raw_ += text;
    return;
  }
  std::string value = ValueAsJson(tag.Attribute("type"), text);
  const auto same_key = std::find_if(arguments_.begin(), arguments_.end(),
                                     [&](const auto& argument) { return argument.first == key; });
  if (same_key != arguments_.end()) {
    same_key->second = std::move(value);
  } else {
    arguments_.emplace_back(key, std::move(value));
  }
}

void ToolCallBuilder::AddRaw(const std::string& text) {
  all_text_ += text;
  raw_ += text;
}

ToolCallBuilder::Result ToolCallBuilder::Finish(int index) && {
  Result result;
  if (name_.empty()) {
    result.stray_text = std::move(all_text_);
    return result;
  }
  ToolCall call{index, std::move(name_), ""};
  if (arguments_.empty() && !IsBlank(raw_)) {
    call.arguments = std::move(raw_);
  } else {
    for (const auto& [key, value] : arguments_) {
      call.arguments += call.arguments.empty() ? "{" : ", ";
      call.arguments += QuotePython(key) + ": " + value;
    }
    call.arguments += arguments_.empty() ? "{}" : "}";
    if (!IsBlank(raw_)) result.stray_text = std::move(raw_);
  }
  result.call = std::move(call);
  return result;
}

}  // namespace deltafin
