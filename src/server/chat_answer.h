// An answer in the chat format.
#pragma once

#include <memory>
#include <optional>

#include "server/answer.h"
#include "server/answer_shape.h"
#include "server/shown_text.h"

namespace deltafin {

class ChatAnswer final : public Answer {
 public:
  // `shape` may be null. `with_tokens`: pieces name the tokens of the content.
  ChatAnswer(const Tokenizer& tokenizer, bool thinking, const std::vector<std::string>& stops,
             const std::shared_ptr<const ShapeOptions>& shape, bool with_tokens);

  bool constrained() const override { return shape_.has_value(); }
  bool Allows(TokenId id) const override { return shape_->Allows(id); }
  AnswerPiece Push(const JobToken& token) override;
  AnswerPiece Finish() override;
  bool is_enough() const override { return text_.found_stop(); }
  bool has_calls() const override { return has_calls_; }
  int64_t reasoning_tokens() const override { return reasoning_tokens_; }

 private:
  AnswerPiece Take(ChatDelta delta);

  const Tokenizer& tokenizer_;
  std::unique_ptr<ChatParser> parser_;
  std::optional<TokenShape> shape_;
  ShownText text_;
  bool with_tokens_;
  bool has_calls_ = false;
  int64_t undecided_tokens_ = 0;  // since the last text: half a character
  int64_t reasoning_tokens_ = 0;
};

}  // namespace deltafin
