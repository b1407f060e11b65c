// The prompt of a chat as token ids, and where other prompts are likely to go another way.
#pragma once

#include <cstdint>
#include <vector>

#include "deltafin/chat.h"
#include "deltafin/tokenizer.h"

namespace deltafin {

struct ChatPrompt {
  std::vector<TokenId> ids;
  // As Job::shared_lengths: the end of what the system says at the begin, which other conversations
  // share, and the end of the last turn, which the next request of this one goes on from.
  std::vector<int64_t> shared_lengths;
};

ChatPrompt EncodeChat(const RenderedChat& chat, const Tokenizer& tokenizer);

}  // namespace deltafin
