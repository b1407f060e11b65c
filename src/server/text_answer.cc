#include "server/text_answer.h"

#include <algorithm>
#include <utility>

namespace deltafin {

TextAnswer::TextAnswer(const Tokenizer& tokenizer, TextAnswerOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      prompt_text_({}),
      text_(options_.stops) {}

AnswerPiece TextAnswer::PushPrompt(const JobToken& token) {
  AnswerPiece piece;
  if (!options_.echo) return piece;
  if (options_.with_tokens) prompt_text_.AddToken(token.id, token.logprobs);
  const std::string text = prompt_decoder_.Push(tokenizer_.Bytes(token.id));
  prompt_text_.AddText(text, &piece);
  text_.AddBefore(text);
  return piece;
}

AnswerPiece TextAnswer::Push(const JobToken& token) {
  AnswerPiece piece;
  if (options_.echo) {  // half a character at the end of the prompt stays there
    const std::string rest = prompt_decoder_.Finish();
    prompt_text_.AddText(rest, &piece);
    text_.AddBefore(rest);
  }
  const std::vector<TokenId>& stops = options_.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token.id) != stops.end()) return piece;
  if (options_.with_tokens) text_.AddToken(token.id, token.logprobs);
  text_.AddText(decoder_.Push(tokenizer_.Bytes(token.id)), &piece);
  return piece;
}

AnswerPiece TextAnswer::Finish() {
  AnswerPiece piece;
  prompt_text_.AddText(prompt_decoder_.Finish(), &piece);
  text_.AddText(decoder_.Finish(), &piece);
  text_.Finish(&piece);
  return piece;
}

}  // namespace deltafin
