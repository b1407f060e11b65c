// One mutable token timeline with its state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deltafin/engine.h"
#include "deltafin/sampling.h"
#include "deltafin/types.h"

namespace deltafin {

// A copy of a session's state. Opaque; restores only into sessions of the same engine.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
  virtual uint64_t size_bytes() const = 0;
  virtual int64_t num_tokens() const = 0;
};

// How far a prompt is.
struct PrefillProgress {
  int64_t tokens = 0;       // that are to be computed
  int64_t done_tokens = 0;  // of them, in whole passes
  int64_t pass_tokens = 0;  // of them, in the pass that is going on
  int64_t layer = 0;        // that this pass has reached
  int64_t num_layers = 0;
  double seconds_left = 0;  // estimated; 0: not known yet

  // In [0, 1].
  double done() const {
    const double layers =
        num_layers > 0 ? static_cast<double>(layer) / static_cast<double>(num_layers) : 0;
    const double count =
        static_cast<double>(done_tokens) + static_cast<double>(pass_tokens) * layers;
    return tokens > 0 ? count / static_cast<double>(tokens) : 0;
  }
};
// Called between layers, on the thread that runs the pass.
using OnPrefillProgress = std::function<void(const PrefillProgress&)>;

struct GenerateOptions {
  int64_t max_new_tokens = 0;
  bool stop_at_stop_tokens = true;
  SamplingOptions sampling;  // greedy
  int64_t top_logprobs = 0;  // with each token, log probabilities of this many; 0: none at all
  // Guesses at the next tokens that one pass may check: changes the time, never a token. 0: none;
  // kAutoDraft: as many as pay; N: up to N whenever there is a guess, at most the engine's
  // max_draft_tokens.
  int64_t draft_tokens = 0;
  // Called for every token as it comes, stop tokens included. Return false to cancel. Must not use
  // the session.
  std::function<bool(TokenId)> on_token;
  // Asked between layers; return true to cancel.
  std::function<bool()> cancelled;
  OnPrefillProgress on_progress;
  // Called between two passes of a prompt that takes several: the session may be saved (SaveTo),
  // with the part of the prompt that is not computed yet, and goes on there when it is restored.
  std::function<void()> on_prefill_pass;
};

struct GenerateResult {
  std::vector<TokenId> tokens;             // a stop token that ended it is the last one
  std::vector<PositionLogprobs> logprobs;  // of each token, if wanted
  FinishReason finish_reason = FinishReason::kLength;
  int64_t drafted_tokens = 0;   // guesses that were checked
  int64_t accepted_tokens = 0;  // of them right
  int64_t draft_passes = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of the tokens after the first
};

// What the router of one layer picked for one token.
struct RouterPicks {
  int64_t position = 0;  // in the session, from 0
  int64_t layer = 0;
  std::span<const int32_t> ids;    // descending by the router's score
  std::span<const float> weights;  // of the same
};
// Called on the thread that runs the pass, layer after layer, and within a layer token after token.
using OnRouterPicks = std::function<void(const RouterPicks&)>;

// Not thread-safe.
class Session {
 public:
  virtual ~Session() = default;

  virtual const std::vector<TokenId>& tokens() const = 0;

  // Appends tokens, at most `chunk` positions per pass (0: as many as the plan has room for). If
  // `logits` is set it is called with each position's logits [vocab_size], in order; else only the
  // last position's are computed. Throws Error(kInvalidArgument) for an id outside the vocabulary,
  // Error(kOutOfMemory) when the context that was planned for is full, Error(kCancelled) when
  // `cancelled` (as in GenerateOptions) says so, and Error for a failed read. After a failed pass
  // the session must be restored from a snapshot or dropped: anything else throws.
  virtual void Append(std::span<const TokenId> tokens, int64_t chunk,
                      const std::function<void(int64_t position, std::span<const float>)>& logits,
                      const std::function<bool()>& cancelled) = 0;
  // Logits after the last token that entered the state. Requires one.
  virtual std::span<const float> last_logits() const = 0;

  // Appends `prompt` and then tokens that options.sampling chooses until a stop token,
  // max_new_tokens, a full context (both kLength) or cancellation. The last token generated is part
  // of tokens(), and enters the state with the next call. prompt must not be empty when the session
  // is; an empty one goes on with the same answer, as if the call before had not ended. Errors as
  // Append, and Error(kInvalidArgument) for an impossible option, except that cancellation is a
  // finish reason.
  virtual GenerateResult Generate(std::span<const TokenId> prompt,
                                  const GenerateOptions& options) = 0;

  // Makes `tokens` the session's text, however it differs from what is there: goes on from the
  // state when they begin with its text, or from the longest state that was kept of a beginning of
  // them (a recurrent state cannot be cut), and computes the rest. States are kept at the end of
  // the text before and after, and now and then in between, as far as EngineOptions::snapshot_bytes
  // goes. Returns how many tokens did not have to be computed. Errors as Append; after an
  // interrupted pass, and after any other call that was interrupted, it may simply be called again.
  virtual int64_t Sync(std::span<const TokenId> tokens, const std::function<bool()>& cancelled,
                       const OnPrefillProgress& on_progress) = 0;

  // Reports the picks of all passes from now on; empty ends it.
  virtual void SetOnRouterPicks(const OnRouterPicks&) {}

  // A copy in memory, of empty_state_bytes (ModelInfo) and more with every token: the plan has no
  // room for it but EngineOptions::snapshot_bytes.
  virtual std::unique_ptr<Snapshot> Save() const = 0;
  // Throws Error(kIo) or Error(kNoSpace) when the part of the latent cache that is not in RAM
  // cannot be written; the session must then be restored or dropped.
  virtual void Restore(const Snapshot& snapshot) = 0;

  // Where the text since the last prompt begins: what was generated, as an index of tokens().
  virtual size_t first_generated() const = 0;
  // Writes the session to a file (saved_sessions.h says where they lie), which is there whole or
  // not at all; `note` is kept for the caller. Folders are made. Throws Error(kIo), or as Save.
  virtual void SaveTo(const std::string& path, const std::string& note) const = 0;
  // Goes on where a file was saved, with the same bits as if it had never been. Returns its note.
  // Throws Error(kNotFound); Error(kCorrupt) when the file is damaged; Error(kInvalidArgument) when
  // it was computed with another model, latent cache or spine; Error(kOutOfMemory) when it is
  // longer than the context that was planned for. The session is then as it was. Throws Error(kIo)
  // when the disk fails, and as Restore; the session must then be restored or dropped.
  virtual std::string RestoreFrom(const std::string& path) = 0;
};

}  // namespace deltafin
