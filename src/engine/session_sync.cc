// Session::Sync: from one text to another by the shortest way.
#include <algorithm>

#include "engine/session_impl.h"

namespace deltafin {
namespace {

// Between two states that are kept while a text is computed; the later one replaces the other.
constexpr int64_t kTokensBetweenStates = 2048;

}  // namespace

StateCache::Id SessionImpl::KeepState() {
  KeptText text;
  text.tokens.assign(tokens_.begin(), tokens_.begin() + state_.num_tokens());
  text.logits = last_logits_;
  text.first_generated = std::ssize(text.tokens);
  return kept_->Keep(text, state_);
}

int64_t SessionImpl::Sync(std::span<const TokenId> tokens, const std::function<bool()>& cancelled,
                          const OnPrefillProgress& on_progress) {
  if (tokens.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "text: expected at least one token, got none");
  }
  CheckTokens(tokens, 0);
  if (kept_ == nullptr) {
    kept_ = std::make_unique<StateCache>(StateCacheOptions{engine_.info().snapshot_bytes, "", 0},
                                         SessionOrigin(), engine_.info().context_tokens);
  }
  const WantedText wanted{tokens};
  int64_t useful = 0;
  if (usable_) {
    const auto known = std::span(tokens_).first(static_cast<size_t>(state_.num_tokens()));
    useful = UsefulTokens(known, !last_logits_.empty(), 0, 0, wanted);
  }
  if (useful == 0 || kept_->MostUseful(wanted) > useful) {
    if (usable_) KeepState();
    usable_ = false;  // until a whole state is there again
    useful = 0;
    last_logits_.clear();
    if (std::optional<KeptText> text = kept_->Restore(wanted, 0, state_)) {
      useful = std::ssize(text->tokens);
      last_logits_ = std::move(text->logits);
    } else {
      state_.Clear();
    }
    usable_ = true;
    if (speculation_ != nullptr) speculation_->Reset();
  }
  tokens_.assign(tokens.begin(), tokens.end());
  first_generated_ = tokens_.size();
  int64_t kept_tokens = state_.num_tokens();
  StateCache::Id last = 0;
  const auto keep = [&] {
    if (pending() > 0 && state_.num_tokens() < kept_tokens + kTokensBetweenStates) return;
    kept_tokens = state_.num_tokens();
    const StateCache::Id id = KeepState();
    if (last != id) kept_->Drop(last);
    last = id;
  };
  CatchUp({0, nullptr, cancelled, on_progress, keep});
  return useful;
}

}  // namespace deltafin
