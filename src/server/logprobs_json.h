// Log probabilities in the forms of OpenAI's interface.
#pragma once

#include <vector>

#include "deltafin/json.h"
#include "deltafin/tokenizer.h"
#include "server/answer.h"

namespace deltafin {

// The elements of logprobs.content in a chat: token, logprob, bytes, top_logprobs.
Json ChatLogprobs(const Tokenizer& tokenizer, const std::vector<ShownToken>& tokens);

// {tokens, token_logprobs, top_logprobs, text_offset}, the form of plain completions.
Json CompletionLogprobs(const Tokenizer& tokenizer, const std::vector<ShownToken>& tokens);

}  // namespace deltafin
