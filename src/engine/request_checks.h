// What a request must be, whoever runs it: a session or a scheduler. Internal to engine/.
#pragma once

#include <cstdint>
#include <span>

#include "deltafin/engine.h"
#include "deltafin/types.h"

namespace deltafin {

// Throws Error(kInvalidArgument) for an id outside the vocabulary.
void CheckTokenIds(std::span<const TokenId> tokens, const ModelInfo& info);
// Throws Error(kOutOfMemory) when a text of so many tokens does not fit the context.
void CheckContextHolds(int64_t tokens, const ModelInfo& info);
// Throws Error(kInvalidArgument) for more guesses than there is room for.
void CheckDraftTokens(int64_t draft_tokens, const ModelInfo& info);

}  // namespace deltafin
