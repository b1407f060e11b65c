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

  // A value: the element's tag (an argument's, or that of a json element), its text, its end. An
  // argument of type string is taken as it is, any other is JSON; what is not valid JSON becomes a
  // string, so that nothing is lost.
  void BeginValue(const ChatTag& tag);
  void AddValueText(const std::string& text);  // whole characters
  void EndValue();

  // Text that stands outside of every element.
  void AddRaw(const std::string& text);

  // What belongs to no call: everything, when the call has no name and cannot be made.
  struct Result {
    std::optional<ToolCall> call;
    std::string stray_text;
  };
  Result Finish(int index);

  const std::string& name() const { return name_; }
  // What is known of the arguments' text since the last call, Finish included.
  std::string TakePiece();

 private:
  bool IsStringArgument() const;
  void AddArgument(const std::string& key, std::string value);

  std::string name_;
  std::vector<std::pair<std::string, std::string>> arguments_;  // key and JSON text of the value
  std::string raw_;
  std::string all_text_;
  ChatTag value_tag_;
  std::string value_;
  std::string piece_;
  int num_pieces_ = 0;  // arguments of which a piece came
};

}  // namespace deltafin
