#include "engine/speculation.h"

#include <algorithm>

#include "engine/ngram_source.h"

namespace deltafin {

Speculation::Speculation(const ModelConfig& config, Device& device, int64_t max_draft_tokens,
                         std::unique_ptr<DraftSource> source)
    : rollback_(config, device, 1 + max_draft_tokens),
      source_(std::move(source)),
      logits_(static_cast<size_t>(1 + max_draft_tokens)) {}

std::vector<TokenId> Speculation::Propose(std::span<const TokenId> text, int64_t wanted,
                                          int64_t room) {
  const int64_t longest =
      std::min({room, rollback_.max_tokens() - 1, wanted == kAutoDraft ? kMaxDraftTokens : wanted});
  if (longest <= 0) return {};
  Draft draft = source_->Propose(text, longest);
  match_ = draft.match;
  const auto available = static_cast<int64_t>(draft.tokens.size());
  if (wanted == kAutoDraft) draft.tokens.resize(policy_.Choose(match_, available));
  return std::move(draft.tokens);
}

uint64_t Speculation::Bytes(const ModelConfig& config, int64_t max_draft_tokens) {
  if (max_draft_tokens == 0) return 0;
  const int64_t rows = 1 + max_draft_tokens;
  return Rollback::Bytes(config, rows) + NgramSource::MaxBytes(config.vocab_size) +
         static_cast<uint64_t>(rows * config.vocab_size) * sizeof(float);
}

}  // namespace deltafin
