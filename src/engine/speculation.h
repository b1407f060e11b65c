// What a session needs to check guesses at its next tokens, several in one pass.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/draft_policy.h"
#include "engine/draft_source.h"
#include "model/rollback.h"

namespace deltafin {

// Of one session. Not thread-safe.
class Speculation {
 public:
  // For drafts of at most `max_draft_tokens`, at least 1. Throws Error(kOutOfMemory).
  Speculation(const ModelConfig& config, Device& device, int64_t max_draft_tokens,
              std::unique_ptr<DraftSource> source);

  // The guesses to check now, at most `room`: wanted as GenerateOptions::draft_tokens.
  std::vector<TokenId> Propose(std::span<const TokenId> text, int64_t wanted, int64_t room);

  // A pass without draft.
  void RecordPlain(double seconds) { policy_.RecordPlain(seconds); }
  // A pass with the draft proposed last.
  void RecordDraft(int64_t drafted, int64_t accepted, double seconds) {
    policy_.RecordDraft(match_, drafted, accepted, seconds);
  }
  // The text is another one from now on.
  void Reset() { source_->Reset(); }

  Rollback& rollback() { return rollback_; }
  // Room for the logits of a pass, a row for each position.
  std::vector<std::vector<float>>& logits() { return logits_; }

  // Bytes of memory; 0 for no draft tokens.
  static uint64_t Bytes(const ModelConfig& config, int64_t max_draft_tokens);

 private:
  Rollback rollback_;
  DraftPolicy policy_;
  std::unique_ptr<DraftSource> source_;
  std::vector<std::vector<float>> logits_;
  int64_t match_ = 0;
};

}  // namespace deltafin
