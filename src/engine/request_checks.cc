#include "engine/request_checks.h"

#include "base/format.h"
#include "deltafin/error.h"

namespace deltafin {

void CheckTokenIds(std::span<const TokenId> tokens, const ModelInfo& info) {
  for (TokenId token : tokens) {
    if (token >= 0 && token < info.vocab_size) continue;
    throw Error(ErrorCode::kInvalidArgument,
                format("token id: expected 0 to {}, got {}", info.vocab_size - 1, token));
  }
}

void CheckContextHolds(int64_t tokens, const ModelInfo& info) {
  if (tokens <= info.context_tokens) return;
  throw Error(ErrorCode::kOutOfMemory,
              format("context: {} tokens do not fit the {} that the memory plan has room for; pass "
                     "a larger --context (the model allows {})",
                     tokens, info.context_tokens, info.max_context_tokens));
}

void CheckDraftTokens(int64_t draft_tokens, const ModelInfo& info) {
  const int64_t room = info.max_draft_tokens;
  if (draft_tokens >= kAutoDraft && draft_tokens <= room) return;
  throw Error(ErrorCode::kInvalidArgument,
              format("draft tokens: expected at most {}, which the engine was opened with room "
                     "for, got {}",
                     room, draft_tokens));
}

}  // namespace deltafin
