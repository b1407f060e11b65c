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

bool ToolCallBuilder::IsStringArgument() const {
  return value_tag_.name == kArgumentTag && !value_tag_.Attribute("key").empty() &&
         value_tag_.Attribute("type") == "string";
}

void ToolCallBuilder::BeginValue(const ChatTag& tag) {
  value_tag_ = tag;
  value_.clear();
  if (tag.name != kArgumentTag || tag.Attribute("key").empty()) return;
  piece_ += num_pieces_++ == 0 ? "{" : ", ";
  piece_ += QuotePython(tag.Attribute("key")) + ": ";
  if (IsStringArgument()) piece_ += '"';
}

void ToolCallBuilder::AddValueText(const std::string& text) {
  value_ += text;
  if (!IsStringArgument()) return;
  const std::string quoted = QuotePython(text);
  piece_.append(quoted, 1, quoted.size() - 2);
}

void ToolCallBuilder::EndValue() {
  all_text_ += value_;
  const std::string key = value_tag_.name == kArgumentTag ? value_tag_.Attribute("key") : "";
  if (key.empty()) {
    raw_ += value_;
    return;
  }
  std::string value = ValueAsJson(value_tag_.Attribute("type"), value_);
  piece_ += IsStringArgument() ? "\"" : value;
  AddArgument(key, std::move(value));
}

void ToolCallBuilder::AddArgument(const std::string& key, std::string value) {
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

ToolCallBuilder::Result ToolCallBuilder::Finish(int index) {
  Result result;
  if (name_.empty()) {
    result.stray_text = std::move(all_text_);
    return result;
  }
  ToolCall call{index, name_, ""};
  if (arguments_.empty() && !IsBlank(raw_)) {
    call.arguments = std::move(raw_);
    piece_ += call.arguments;
  } else {
    for (const auto& [key, value] : arguments_) {
      call.arguments += call.arguments.empty() ? "{" : ", ";
      call.arguments += QuotePython(key) + ": " + value;
    }
    call.arguments += arguments_.empty() ? "{}" : "}";
    piece_ += arguments_.empty() ? "{}" : "}";
    if (!IsBlank(raw_)) result.stray_text = std::move(raw_);
  }
  result.call = std::move(call);
  return result;
}

std::string ToolCallBuilder::TakePiece() {
  return name_.empty() ? std::string() : std::exchange(piece_, {});
}

}  // namespace deltafin
