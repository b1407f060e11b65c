#include "deltafin/session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/format.h"
#include "base/seconds_since.h"
#include "engine/ngram_source.h"
#include "engine/request_checks.h"
#include "engine/session_impl.h"

namespace deltafin {
namespace {

struct SnapshotImpl : Snapshot {
  uint64_t size_bytes() const override {
    return state.size() + tokens.size() * sizeof(TokenId) + last_logits.size() * sizeof(float);
  }
  int64_t num_tokens() const override { return static_cast<int64_t>(tokens.size()); }

  const EngineImpl* engine = nullptr;
  std::vector<TokenId> tokens;
  size_t first_generated = 0;
  std::vector<float> last_logits;
  std::vector<std::byte> state;
};

}  // namespace

// Cuts a layer's picks into tokens. The state knows the first one's position until the pass ends.
class SessionImpl::PicksSink : public TraceSink {
 public:
  PicksSink(const SequenceState& state, OnRouterPicks callback)
      : state_(state), callback_(std::move(callback)) {}

  bool WantsActivations() const override { return false; }
  void OnActivations(int64_t, TracePoint, std::span<const float>, int64_t) override {}
  void OnPicks(int64_t layer, std::span<const int32_t> ids, std::span<const float> weights,
               int64_t top_k) override {
    const size_t count = static_cast<size_t>(top_k);
    for (size_t row = 0; row * count < ids.size(); ++row) {
      callback_({state_.num_tokens() + static_cast<int64_t>(row), layer,
                 ids.subspan(row * count, count), weights.subspan(row * count, count)});
    }
  }

 private:
  const SequenceState& state_;
  const OnRouterPicks callback_;
};

SessionImpl::SessionImpl(EngineImpl& engine)
    : engine_(engine),
      state_(engine.config(), engine.device(), engine.cache_format(), engine.cache_spill()) {}

SessionImpl::~SessionImpl() = default;

void SessionImpl::SetOnRouterPicks(const OnRouterPicks& callback) {
  picks_sink_ = callback ? std::make_unique<PicksSink>(state_, callback) : nullptr;
  trace_ = picks_sink_.get();
}

void SessionImpl::CheckUsable() const {
  if (usable_) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "session: a pass was interrupted or failed; restore a snapshot or start a new session");
}

void SessionImpl::CheckTokens(std::span<const TokenId> tokens, size_t before) const {
  CheckTokenIds(tokens, engine_.info());
  CheckContextHolds(static_cast<int64_t>(before + tokens.size()), engine_.info());
}

bool SessionImpl::ContextIsFull() const {
  return static_cast<int64_t>(tokens_.size()) >= engine_.info().context_tokens;
}

void SessionImpl::Append(std::span<const TokenId> tokens, int64_t chunk,
                         const std::function<void(int64_t, std::span<const float>)>& logits,
                         const std::function<bool()>& cancelled) {
  CheckUsable();
  CheckTokens(tokens, tokens_.size());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  first_generated_ = tokens_.size();
  CatchUp({chunk, logits, cancelled, nullptr, nullptr});
}

void SessionImpl::CatchUp(const CatchUpOptions& options) {
  const int64_t planned = options.logits ? engine_.max_logits_positions() : engine_.max_positions();
  const int64_t step = options.chunk > 0 ? std::min(options.chunk, planned) : planned;
  const auto start = std::chrono::steady_clock::now();
  PrefillProgress progress;
  progress.tokens = pending();
  progress.num_layers = engine_.info().num_layers;
  ForwardHooks hooks{options.cancelled, trace_};
  if (options.on_progress) {
    hooks.on_layer = [&](int64_t layer) {
      progress.layer = layer;
      const double done = progress.done();
      progress.seconds_left = done > 0 ? SecondsSince(start) * (1 - done) / done : 0;
      options.on_progress(progress);
    };
  }
  while (pending() > 0) {
    const int64_t first = state_.num_tokens();
    const int64_t count = std::min(step, pending());
    const LogitsWanted wanted = options.logits       ? LogitsWanted::kAll
                                : count == pending() ? LogitsWanted::kLast
                                                     : LogitsWanted::kNone;
    const Run run{&state_, std::span(tokens_).subspan(first, count), wanted};
    const auto sink = [&](size_t, int64_t position, std::span<const float> row) {
      if (options.logits) options.logits(first + position, row);
      if (position == count - 1) last_logits_.assign(row.begin(), row.end());
    };
    if (wanted == LogitsWanted::kNone) last_logits_.clear();
    progress.pass_tokens = count;
    usable_ = false;  // until the pass has ended well
    engine_.model().Forward({&run, 1}, sink, hooks);
    usable_ = true;
    progress.done_tokens += count;
    if (options.after_pass) options.after_pass();
  }
}

std::span<const float> SessionImpl::last_logits() const {
  DF_CHECK(!last_logits_.empty());
  return last_logits_;
}

void SessionImpl::CheckOptions(const GenerateOptions& options) const {
  if (options.top_logprobs < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                format("logprobs: expected at least 0, got {}", options.top_logprobs));
  }
  CheckDraftTokens(options.draft_tokens, engine_.info());
}

void SessionImpl::set_draft_source(std::unique_ptr<DraftSource> source) {
  speculation_ = std::make_unique<Speculation>(engine_.config(), engine_.device(),
                                               engine_.info().max_draft_tokens, std::move(source));
}

GenerateResult SessionImpl::Generate(std::span<const TokenId> prompt,
                                     const GenerateOptions& options) {
  CheckUsable();
  CheckTokens(prompt, tokens_.size());
  CheckOptions(options);
  Sampler sampler(options.sampling, engine_.config().vocab_size);
  if (tokens_.empty() && prompt.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "prompt: expected at least one token, got none");
  }
  tokens_.insert(tokens_.end(), prompt.begin(), prompt.end());
  if (!prompt.empty()) first_generated_ = tokens_.size();

  GenerateResult result;
  const std::vector<TokenId>& stops = engine_.stop_tokens();
  auto start = std::chrono::steady_clock::now();
  const Accept accept = [&](std::span<const float> logits) {
    const TokenId token = tokens_.size() < forced_text_.size()
                              ? forced_text_[tokens_.size()]
                              : sampler.Choose(logits, tokens_, first_generated_);
    if (options.top_logprobs > 0) {
      result.logprobs.push_back(LogprobsOf(logits, token, options.top_logprobs));
    }
    tokens_.push_back(token);
    result.tokens.push_back(token);
    result.decode_seconds = SecondsSince(start);
    result.finish_reason = FinishReason::kCancelled;
    if (options.on_token && !options.on_token(token)) return false;
    result.finish_reason = FinishReason::kStop;
    if (options.stop_at_stop_tokens &&
        std::find(stops.begin(), stops.end(), token) != stops.end()) {
      return false;
    }
    result.finish_reason = FinishReason::kLength;
    return true;
  };
  try {
    CatchUp({0, nullptr, options.cancelled, options.on_progress, [&] {
               if (pending() > 0 && options.on_prefill_pass) options.on_prefill_pass();
             }});
    result.prefill_seconds = SecondsSince(start);
    start = std::chrono::steady_clock::now();
    bool go_on = true;
    while (go_on && !ContextIsFull()) {
      const int64_t remaining = options.max_new_tokens - std::ssize(result.tokens);
      if (remaining <= 0) break;
      const std::vector<TokenId> draft = NextDraft(options, remaining);
      if (draft.empty()) {
        go_on = PlainStep(options, accept);
        continue;
      }
      const int64_t before = std::ssize(result.tokens);
      go_on = DraftStep(draft, options, accept);
      const int64_t added = std::ssize(result.tokens) - before;
      ++result.draft_passes;
      result.drafted_tokens += std::ssize(draft);
      result.accepted_tokens += added - 1;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
    result.finish_reason = FinishReason::kCancelled;
  }
  return result;
}

std::vector<TokenId> SessionImpl::NextDraft(const GenerateOptions& options, int64_t remaining) {
  if (options.draft_tokens == 0 || engine_.info().max_draft_tokens == 0 || pending() != 1) {
    return {};
  }
  if (trace_ != nullptr) return {};  // an observer sees every token once
  if (speculation_ == nullptr) set_draft_source(std::make_unique<NgramSource>());
  // A pass yields one token more than it has guesses.
  const int64_t room = engine_.info().context_tokens - std::ssize(tokens_);
  return speculation_->Propose(tokens_, options.draft_tokens, std::min(remaining, room) - 1);
}

bool SessionImpl::PlainStep(const GenerateOptions& options, const Accept& accept) {
  const bool one_pass = pending() == 1;  // the token chosen last
  const auto start = std::chrono::steady_clock::now();
  CatchUp({0, nullptr, options.cancelled, nullptr, nullptr});
  if (one_pass && speculation_ != nullptr) speculation_->RecordPlain(SecondsSince(start));
  return accept(last_logits_);
}

// One pass over the token chosen last and the guesses. Every position is decided as it would be
// without guesses, as long as the guess before it was what was decided; the rest is taken back.
bool SessionImpl::DraftStep(std::span<const TokenId> draft, const GenerateOptions& options,
                            const Accept& accept) {
  const auto drafted = std::ssize(draft);
  std::vector<TokenId> tokens = {tokens_.back()};
  tokens.insert(tokens.end(), draft.begin(), draft.end());
  std::vector<std::vector<float>>& logits = speculation_->logits();
  const Run run{&state_, tokens, LogitsWanted::kAll, &speculation_->rollback()};
  const auto sink = [&](size_t, int64_t position, std::span<const float> row) {
    logits[position].assign(row.begin(), row.end());
  };
  usable_ = false;  // until the state is that of tokens_ again
  auto start = std::chrono::steady_clock::now();
  engine_.model().Forward({&run, 1}, sink, {options.cancelled, trace_});
  double seconds = SecondsSince(start);

  int64_t kept = 0;  // positions whose successor has been chosen
  const auto settle = [&] {
    start = std::chrono::steady_clock::now();
    speculation_->rollback().Undo(state_, kept);
    if (kept > 0) last_logits_.swap(logits[kept - 1]);
    usable_ = true;
    seconds += SecondsSince(start);
  };
  bool go_on = true;
  try {
    do {
      go_on = accept(logits[kept]);
      ++kept;
    } while (go_on && kept <= drafted && tokens_.back() == draft[kept - 1]);
  } catch (...) {
    kept = std::ssize(tokens_) - (state_.num_tokens() - 1 - drafted) - 1;
    settle();
    throw;
  }
  settle();
  speculation_->RecordDraft(drafted, kept - 1, seconds);
  return go_on;
}

std::unique_ptr<Snapshot> SessionImpl::Save() const {
  CheckUsable();
  auto snapshot = std::make_unique<SnapshotImpl>();
  snapshot->engine = &engine_;
  snapshot->tokens = tokens_;
  snapshot->first_generated = first_generated_;
  snapshot->last_logits = last_logits_;
  snapshot->state = state_.Save();
  return snapshot;
}

void SessionImpl::Restore(const Snapshot& snapshot) {
  const auto* saved = dynamic_cast<const SnapshotImpl*>(&snapshot);
  if (saved == nullptr || saved->engine != &engine_) {
    throw Error(ErrorCode::kInvalidArgument, "snapshot: made by another engine");
  }
  usable_ = false;  // until all of it is there: what spills may find the disk full
  state_.Restore(saved->state);
  tokens_ = saved->tokens;
  first_generated_ = saved->first_generated;
  last_logits_ = saved->last_logits;
  usable_ = true;
  if (speculation_ != nullptr) speculation_->Reset();
}

}  // namespace deltafin
