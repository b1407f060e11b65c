// An answer that is plain text.
#pragma once

#include <string>
#include <vector>

#include "server/answer.h"
#include "server/shown_text.h"

namespace deltafin {

struct TextAnswerOptions {
  std::vector<std::string> stops;
  std::vector<TokenId> stop_tokens;  // that are no text
  bool with_tokens = false;          // pieces name the tokens
  // The prompt is part of what is shown: with tokens as PushPrompt brings them, else at once.
  bool echo = false;
};

class TextAnswer final : public Answer {
 public:
  TextAnswer(const Tokenizer& tokenizer, TextAnswerOptions options);

  AnswerPiece PushPrompt(const JobToken& token) override;
  AnswerPiece Push(const JobToken& token) override;
  AnswerPiece Finish() override;
  bool is_enough() const override { return text_.found_stop(); }

 private:
  const Tokenizer& tokenizer_;
  const TextAnswerOptions options_;
  StreamDecoder prompt_decoder_;
  StreamDecoder decoder_;
  ShownText prompt_text_;
  ShownText text_;
};

}  // namespace deltafin
