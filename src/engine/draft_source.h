// Where guesses at the next tokens come from. A wrong guess costs time and changes nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "deltafin/types.h"

namespace deltafin {

struct Draft {
  std::vector<TokenId> tokens;  // may be empty
  int64_t match = 0;            // how many of the last tokens the guess rests on: more means surer
};

// Not thread-safe.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // At most `max_tokens` tokens that may follow `text`, which continues the text of the call before
  // unless Reset came in between.
  virtual Draft Propose(std::span<const TokenId> text, int64_t max_tokens) = 0;
  // The next text is another one.
  virtual void Reset() = 0;
};

}  // namespace deltafin
