// Runs the answers of many callers side by side: one thread owns all sessions and advances them in
// shared passes, so that each weight is read once per pass. An answer has the bits that it would
// have alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deltafin/engine.h"
#include "deltafin/sampling.h"
#include "deltafin/types.h"

namespace deltafin {

struct SchedulerOptions {
  int parallel = 1;             // answers that advance together; the engine planned this many
  int max_queued = 32;          // answers that wait for one of those to end
  uint64_t snapshot_bytes = 0;  // RAM for states that later prompts may begin with; 0: none
  std::string state_dir;        // such states are written here too, and found again; "": not
  uint64_t state_dir_bytes = uint64_t{16} << 30;  // of all files there; the oldest go first
  // While a prompt is read or an answer grows its state is kept every so many tokens, in place of
  // the one before: what is cut off loses no more than these. 0: not.
  int64_t snapshot_tokens = 512;
  // Every prompt is computed from its start, also where an earlier answer's session could go on.
  bool always_from_start = false;
};

struct JobProgress {
  enum class Phase : uint8_t { kQueued, kPrefill, kDecode };
  Phase phase = Phase::kQueued;
  int64_t jobs_before = 0;    // while queued
  int64_t prompt_tokens = 0;  // in all
  int64_t cached_tokens = 0;  // of these, already computed for an earlier prompt
  int64_t done_tokens = 0;    // of prompt_tokens, cached ones included
  int64_t layer = 0;          // that the current pass is in
  int64_t num_layers = 0;
  double seconds_left = 0;  // of the prefill, estimated; 0: not known yet
};

struct JobToken {
  TokenId id = 0;
  std::optional<PositionLogprobs> logprobs;  // if wanted
};

struct JobResult {
  FinishReason finish_reason = FinishReason::kLength;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t new_tokens = 0;  // a stop token that ended it included
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  std::string error;  // why it failed: then finish_reason says nothing; "" when it did not
};

// The callbacks run on the scheduler's thread, must not block or call the scheduler, and are never
// called after on_end. What one throws fails its job. The same prompt with the same sampling goes
// on where an earlier job's kept state ends: its tokens come at once, then the others.
struct Job {
  std::vector<TokenId> prompt;  // at least one
  // Lengths of beginnings of the prompt that other prompts are likely to share or to go on from
  // (end of the system message, of each turn), ascending: states are kept at the first and at the
  // last one. The end of every answer is kept anyway.
  std::vector<int64_t> shared_lengths;
  int64_t max_new_tokens = 0;  // 0: only computes the prompt
  bool stop_at_stop_tokens = true;
  SamplingOptions sampling;
  int64_t top_logprobs = -1;     // -1: no log probabilities; 0: of the chosen token alone
  bool prompt_logprobs = false;  // on_prompt_token is called for every prompt token
  int64_t draft_tokens = 0;      // as GenerateOptions
  // Whether a token may come next. Asked about the token that the sampler chose; one that may not
  // is as if its logit were minus infinity, and the sampler chooses again, until one may. Between
  // two on_token calls the answer for a token must stay the same. Null: every one may.
  std::function<bool(TokenId)> allows;
  std::function<void(const JobToken&)> on_prompt_token;
  std::function<bool(const JobToken&)> on_token;        // false: enough (kCancelled)
  std::function<void(const JobProgress&)> on_progress;  // between layers at most every 0.2 s
  std::function<void(const JobResult&)> on_end;         // exactly once, whatever happens
};

struct SchedulerStats {
  int64_t running = 0;
  int64_t queued = 0;
  uint64_t finished_jobs = 0;
  uint64_t failed_jobs = 0;
  uint64_t cancelled_jobs = 0;
  uint64_t prompt_tokens = 0;  // computed
  uint64_t cached_tokens = 0;  // not computed because a state was there
  uint64_t new_tokens = 0;
  uint64_t passes = 0;
  uint64_t snapshot_bytes = 0;   // in RAM now
  uint64_t state_dir_bytes = 0;  // in files now
  uint64_t failed_states = 0;    // that could not be written or read: they are computed again
};

// What the routers of one layer picked in the last pass: for those who watch.
struct LayerPicks {
  int64_t layer = 0;
  std::vector<int32_t> ids;  // of every position of the pass, one after the other
};

using JobId = uint64_t;

// Thread-safe.
class Scheduler {
 public:
  // The engine must outlive it, and have no other running session. Throws Error.
  static std::unique_ptr<Scheduler> Create(Engine& engine, const SchedulerOptions& options);
  // Cancels what is left.
  virtual ~Scheduler() = default;

  // Returns nothing when the queue is full or Stop was called. Throws Error(kInvalidArgument) for
  // an id outside the vocabulary, an impossible sampling option or an empty prompt, and
  // Error(kOutOfMemory) for a prompt that cannot fit the context.
  [[nodiscard]] virtual std::optional<JobId> Submit(Job job) = 0;
  // Ends the job within one layer of the pass it is in; other jobs are not disturbed. What there is
  // of its answer is kept, for which the token that is being computed is computed to its end.
  // Unknown ids are ignored: it may have ended.
  virtual void Cancel(JobId id) = 0;
  virtual SchedulerStats stats() const = 0;
  virtual std::vector<LayerPicks> last_picks() const = 0;
  // No new jobs. Waits for `seconds` for the running ones to end, then cancels them and saves their
  // states. Returns when the thread is idle.
  virtual void Stop(double seconds) = 0;
};

}  // namespace deltafin
