#include "server/chat_answer.h"

#include <utility>

namespace deltafin {

ChatAnswer::ChatAnswer(const Tokenizer& tokenizer, bool thinking,
                       const std::vector<std::string>& stops,
                       const std::shared_ptr<const ShapeOptions>& shape, bool with_tokens)
    : tokenizer_(tokenizer),
      parser_(ChatParser::Create(tokenizer, thinking)),
      text_(stops),
      with_tokens_(with_tokens) {
  if (shape) shape_.emplace(tokenizer, shape);
}

AnswerPiece ChatAnswer::Push(const JobToken& token) {
  if (shape_) shape_->Accept(token.id);
  ++undecided_tokens_;
  if (with_tokens_) text_.AddToken(token.id, token.logprobs);
  ChatDelta delta = parser_->Push(token.id);
  // The end of a tag: its tokens were text of nobody.
  const bool is_tag =
      delta.empty() && tokenizer_.IsSpecial(token.id) && tokenizer_.Bytes(token.id) == "<|sep|>";
  AnswerPiece piece = Take(std::move(delta));
  if (is_tag || parser_->message_ended()) {
    text_.DropTokens();
    undecided_tokens_ = 0;
  }
  return piece;
}

AnswerPiece ChatAnswer::Finish() {
  AnswerPiece piece = Take(parser_->Finish());
  text_.Finish(&piece);
  return piece;
}

AnswerPiece ChatAnswer::Take(ChatDelta delta) {
  AnswerPiece piece;
  if (text_.found_stop()) return piece;
  if (!delta.reasoning.empty()) reasoning_tokens_ += undecided_tokens_;
  if (!delta.empty()) undecided_tokens_ = 0;
  text_.AddText(delta.content, &piece);
  const bool is_other = !delta.reasoning.empty() || !delta.call_pieces.empty();
  if (is_other && delta.content.empty()) text_.DropTokens();
  piece.reasoning = std::move(delta.reasoning);
  if (text_.found_stop()) return piece;
  has_calls_ = has_calls_ || !delta.finished_calls.empty();
  piece.call_pieces = std::move(delta.call_pieces);
  piece.finished_calls = std::move(delta.finished_calls);
  return piece;
}

}  // namespace deltafin
