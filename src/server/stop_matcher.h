// Finds stop strings in a text that comes in pieces. What it says depends on the text alone, never
// on the pieces: the stop string that is complete first ends the text, the longest of several.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deltafin {

class StopMatcher {
 public:
  // None of them may be empty.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // What can be shown after this piece: all but what may still become a stop string. Once one is
  // found nothing comes any more.
  std::string Push(std::string_view piece);
  // The text ended by itself: what was held back.
  std::string Finish();

  bool found() const { return found_; }

 private:
  struct Stop {
    std::string text;
    // failure[k]: the length of the longest proper suffix of text[0, k) that is a prefix of it.
    std::vector<size_t> failure;
    size_t matched = 0;
  };

  std::vector<Stop> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace deltafin
