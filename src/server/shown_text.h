// The text of an answer and the tokens it is made of, cut where a stop string begins.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer.h"
#include "server/stop_matcher.h"

namespace deltafin {

class ShownText {
 public:
  explicit ShownText(const std::vector<std::string>& stops) : matcher_(stops) {}

  // Text that was known before the first token, such as a prompt; not searched for stop strings.
  void AddBefore(std::string_view text);
  // A token that the next text is made of (or a part of it).
  void AddToken(TokenId id, const std::optional<PositionLogprobs>& logprobs);
  // Whole characters, which the tokens since the last call made.
  void AddText(std::string_view text, AnswerPiece* piece);
  // The tokens since the last text were none of this text.
  void DropTokens() { unfinished_.clear(); }
  void Finish(AnswerPiece* piece);

  bool found_stop() const { return matcher_.found(); }

 private:
  struct Held {
    ShownToken token;
    int64_t begin = 0;  // of its text, in bytes
    int64_t end = 0;
  };
  void Release(bool all, AnswerPiece* piece);

  StopMatcher matcher_;
  std::vector<ShownToken> unfinished_;  // their text is not there yet
  std::deque<Held> held_;               // their text is, but may not be shown yet
  int64_t text_bytes_ = 0;              // since the answer began
  int64_t shown_bytes_ = 0;
  int64_t text_characters_ = 0;
};

}  // namespace deltafin
