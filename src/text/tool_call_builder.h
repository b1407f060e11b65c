// One tool call while the model writes it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deltafin/chat.h"
#include "text/chat_markup.h"

namespace deltafin {

class ToolCallBuilder {
 public:
  // `tag`: the call's.
  explicit ToolCallBuilder(const ChatTag& tag) : name_(tag.Attribute("tool")) {}

  // `tag`: the argument's. A value of type string is taken as it is, any other is JSON; what is not
  // valid JSON becomes a string, so that nothing is lost.
  void AddArgument(const ChatTag& tag, const std::string& text);

  // Text of a json element, and text that stands outside of every element.
  void AddRaw(const std::string& text);

  // What belongs to no call: everything, when the call has no name and cannot be made.
  struct Result {
    std::optional<ToolCall> call;
    std::string stray_text;
  };
  Result Finish(int index) &&;

 private:
  std::string name_;
  std::vector<std::pair<std::string, std::string>> arguments_;  // key and JSON text of the value
  std::string raw_;
  std::string all_text_;
};

}  // namespace deltafin
