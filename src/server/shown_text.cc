#include "server/shown_text.h"

#include <algorithm>
#include <utility>

namespace deltafin {
namespace {

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

void ShownText::AddBefore(std::string_view text) { text_characters_ += CountCharacters(text); }

void ShownText::AddToken(TokenId id, const std::optional<PositionLogprobs>& logprobs) {
  if (!matcher_.found()) unfinished_.push_back({id, logprobs, text_characters_});
}

void ShownText::AddText(std::string_view text, AnswerPiece* piece) {
  if (matcher_.found() || text.empty()) return;
  const int64_t begin = text_bytes_;
  text_bytes_ += static_cast<int64_t>(text.size());
  text_characters_ += CountCharacters(text);
  for (ShownToken& token : unfinished_) held_.push_back({std::move(token), begin, text_bytes_});
  unfinished_.clear();
  const std::string shown = matcher_.Push(text);
  shown_bytes_ += static_cast<int64_t>(shown.size());
  piece->content += shown;
  Release(false, piece);
}

void ShownText::Finish(AnswerPiece* piece) {
  const std::string rest = matcher_.Finish();
  shown_bytes_ += static_cast<int64_t>(rest.size());
  piece->content += rest;
  Release(!matcher_.found(), piece);
}

// A token goes out with the last byte of its text; one that a stop string cuts, with the cut.
void ShownText::Release(bool all, AnswerPiece* piece) {
  while (!held_.empty()) {
    Held& first = held_.front();
    const bool is_shown =
        first.end <= shown_bytes_ || (matcher_.found() && first.begin < shown_bytes_);
    if (!is_shown && !all) break;
    piece->tokens.push_back(std::move(first.token));
    held_.pop_front();
  }
  if (matcher_.found()) held_.clear();
}

}  // namespace deltafin
