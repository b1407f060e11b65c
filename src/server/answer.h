// One answer while its tokens come: what can be shown of it, when it is enough, which token may be
// next. On the scheduler's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deltafin/chat.h"
#include "deltafin/scheduler.h"

namespace deltafin {

// A token that is part of the text that is shown.
struct ShownToken {
  TokenId id = 0;
  std::optional<PositionLogprobs> logprobs;  // none for the first token of a prompt
  int64_t text_offset = 0;                   // characters of the text before it
};

// What one token (or the end) adds.
struct AnswerPiece {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPiece> call_pieces;
  std::vector<ToolCall> finished_calls;
  std::vector<ShownToken> tokens;  // only when log probabilities are wanted

  bool empty() const {
    return reasoning.empty() && content.empty() && call_pieces.empty() && finished_calls.empty() &&
           tokens.empty();
  }
};

class Answer {
 public:
  virtual ~Answer() = default;

  // Whether Allows has anything to say.
  virtual bool constrained() const { return false; }
  virtual bool Allows(TokenId) const { return true; }
  // A token of the prompt, when it is part of what is shown.
  virtual AnswerPiece PushPrompt(const JobToken&) { return {}; }
  virtual AnswerPiece Push(const JobToken& token) = 0;
  virtual AnswerPiece Finish() = 0;

  // A stop string was found: nothing more will be shown.
  virtual bool is_enough() const = 0;
  virtual bool has_calls() const { return false; }
  virtual int64_t reasoning_tokens() const { return 0; }
};

}  // namespace deltafin
