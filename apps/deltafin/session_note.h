// What is kept in the file beside a session, for whoever goes on with it.
#pragma once

#include <cstdint>
#include <string>

#include "deltafin/chat.h"

namespace deltafin {

struct SessionNote {
  bool chat = false;
  bool thinking = true;  // the last answer began inside <think>
  uint64_t seed = 0;
  // Of a chat. A file of deltafin run says nothing about these.
  std::string system;
  ReasoningEffort effort = ReasoningEffort::kMax;
  bool system_is_said = true;  // else before the next question
  bool effort_is_said = true;
  int64_t turns = 1;

  std::string Text() const;
  // Throws Error(kCorrupt) naming `path` when the text is not a note.
  static SessionNote Parse(const std::string& text, const std::string& path);
};

}  // namespace deltafin
