// The session behind include/deltafin/session.h. Internal to engine/.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "deltafin/session.h"
#include "engine/engine_impl.h"
#include "engine/sampler.h"
#include "engine/speculation.h"
#include "engine/state_cache.h"
#include "model/sequence_state.h"
#include "model/trace.h"

namespace deltafin {

class SessionImpl : public Session {
 public:
  explicit SessionImpl(EngineImpl& engine);
  ~SessionImpl() override;

  const std::vector<TokenId>& tokens() const override { return tokens_; }
  void Append(std::span<const TokenId> tokens, int64_t chunk,
              const std::function<void(int64_t position, std::span<const float>)>& logits,
              const std::function<bool()>& cancelled) override;
  std::span<const float> last_logits() const override;
  GenerateResult Generate(std::span<const TokenId> prompt, const GenerateOptions& options) override;
  std::unique_ptr<Snapshot> Save() const override;
  void Restore(const Snapshot& snapshot) override;
  size_t first_generated() const override { return first_generated_; }
  void SaveTo(const std::string& path, const std::string& note) const override;
  std::string RestoreFrom(const std::string& path) override;

  int64_t Sync(std::span<const TokenId> tokens, const std::function<bool()>& cancelled,
               const OnPrefillProgress& on_progress) override;
  void SetOnRouterPicks(const OnRouterPicks& callback) override;

  // Observes the passes from now on; null ends it. For tests.
  void set_trace(TraceSink* trace) { trace_ = trace; }
  std::vector<std::byte> state_bytes() const { return state_.Save(); }  // for tests
  uint64_t state_memory_bytes() const { return state_.MemoryBytes(); }
  bool is_mla(int64_t layer) const { return engine_.config().is_mla[static_cast<size_t>(layer)]; }
  // Generate takes text[i] as token i of the session as long as there is one, whatever the logits
  // say. For measurements.
  void set_forced_text(std::vector<TokenId> text) { forced_text_ = std::move(text); }
  // The state as if the text so far, of one to kCachePageTokens tokens, had been read again and
  // again until there are num_tokens: the latent cache at least, for KDA states do not grow. For
  // measurements.
  void RepeatTo(int64_t num_tokens);
  // Guesses come from `source` instead of the text. For tests.
  void set_draft_source(std::unique_ptr<DraftSource> source);

 private:
  class PicksSink;
  // Tokens that are in tokens_ and not yet in the state.
  int64_t pending() const { return static_cast<int64_t>(tokens_.size()) - state_.num_tokens(); }
  bool ContextIsFull() const;
  void CheckUsable() const;
  void CheckTokens(std::span<const TokenId> tokens, size_t before) const;
  void CheckStateIsOfText(const std::string& path, const SessionContent& content) const;
  struct CatchUpOptions {
    int64_t chunk = 0;
    std::function<void(int64_t position, std::span<const float>)> logits;
    std::function<bool()> cancelled;
    OnPrefillProgress on_progress;
    std::function<void()> after_pass;
  };
  // Runs the tokens of tokens_ that the state lacks.
  void CatchUp(const CatchUpOptions& options);
  StateCache::Id KeepState();

  void CheckOptions(const GenerateOptions& options) const;
  // One pass or none, and the tokens that follow from it: accept(logits) chooses each, appends it
  // to tokens_ and says whether to go on. Returns that for the last.
  using Accept = std::function<bool(std::span<const float> logits)>;
  bool PlainStep(const GenerateOptions& options, const Accept& accept);
  bool DraftStep(std::span<const TokenId> draft, const GenerateOptions& options,
                 const Accept& accept);
  // Guesses for the next step; empty: none.
  std::vector<TokenId> NextDraft(const GenerateOptions& options, int64_t remaining);

  EngineImpl& engine_;
  SequenceState state_;
  std::vector<TokenId> tokens_;
  size_t first_generated_ = 0;  // of tokens_, since the last prompt: what penalties count
  std::vector<float> last_logits_;
  bool usable_ = true;  // no pass failed half way
  TraceSink* trace_ = nullptr;
  std::vector<TokenId> forced_text_;
  std::unique_ptr<Speculation> speculation_;  // from the first generation that wants drafts
  std::unique_ptr<TraceSink> picks_sink_;     // behind SetOnRouterPicks
  std::unique_ptr<StateCache> kept_;          // for Sync
};

}  // namespace deltafin
