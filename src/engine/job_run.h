// One answer of a scheduler on its way from prompt to end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deltafin/scheduler.h"
#include "engine/sampler.h"
#include "engine/state_cache.h"
#include "engine/timeline.h"
#include "model/model.h"

namespace deltafin {

class EngineImpl;

// Lives on the scheduler's thread but for the flag. Callbacks that throw fail the job.
class JobRun {
 public:
  using Clock = std::chrono::steady_clock;

  // Throws Error as Scheduler::Submit.
  JobRun(JobId id, Job job, EngineImpl& engine);

  JobId id() const { return id_; }
  const Job& job() const { return job_; }
  // Any thread.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // ---- computing ----
  // Takes a timeline whose text is of use for wanted_text(), or empty. It must outlive the job.
  void Start(Timeline& timeline);
  Timeline* timeline() const { return timeline_; }
  const std::vector<TokenId>& text() const { return text_; }
  bool reads_prompt() const { return !prompt_is_read_; }
  // Tokens that are known and not in the state.
  int64_t pending() const;

  // The next `count` pending tokens; the state is captured at the shared lengths between them if
  // `captures`. After the pass, if the job did not leave it, EndPass.
  Run NextRun(int64_t count, bool captures);
  void TakeLogits(int64_t position, std::span<const float> logits);  // of that run
  void EndPass();
  // The same for a draft: what was guessed and the logits after the last token of the text and each
  // guess. Returns how many of these positions entered the text.
  int64_t EndDraftPass(std::span<const TokenId> draft, std::vector<std::vector<float>>& logits);

  // ---- states that others may go on from ----
  WantedText wanted_text() const;
  // Pending tokens up to the next shared length, or all.
  int64_t TokensToNextState() const;
  // Shared lengths inside the next `count` pending tokens.
  int64_t StatesWithin(int64_t count) const;
  // Whether a state of the beginning of `prompt` will be kept that is not there yet.
  bool WillShare(std::span<const TokenId> prompt) const;
  bool StateIsDue(int64_t every_tokens) const;
  // Says in the timeline what its text is.
  void LabelText();
  // The state between passes; it takes the place of the one before unless that was a shared one.
  void KeepState(StateCache& cache);
  void KeepCaptured(StateCache& cache);
  int64_t kept_tokens() const { return kept_tokens_; }  // of the last state that was kept

  // ---- ends; each calls on_end the first time that any is called ----
  bool ended() const { return ended_; }
  void End(FinishReason reason);
  void Fail(const std::string& why);
  const JobResult& result() const { return result_; }

  // ---- progress ----
  void ReportQueued(int64_t jobs_before);
  // At most every 0.2 s; `run_tokens` of it are in the pass that is at `layer`.
  void ReportLayer(int64_t layer, int64_t run_tokens);

 private:
  void Guarded(const std::function<void()>& callback);
  void PromptIsRead();
  bool ChooseToken(std::span<const float> logits);  // false: that was the last one
  void TakeToken(const JobToken& token);
  bool IsShared(int64_t length) const;
  void ReportPromptTokens();
  bool ReportIsDue();
  double SecondsLeft(int64_t layer, int64_t run_tokens) const;

  const JobId id_;
  const Job job_;
  EngineImpl& engine_;
  Sampler sampler_;
  std::atomic<bool> cancelled_ = false;

  Timeline* timeline_ = nullptr;
  std::vector<TokenId> text_;  // prompt and answer
  bool prompt_is_read_ = false;
  int64_t run_tokens_ = 0;               // of the pass that is going on
  std::vector<JobToken> prompt_tokens_;  // not reported yet
  std::vector<int64_t> shared_lengths_;
  std::vector<std::unique_ptr<StateCapture>> captures_;  // of the pass
  std::vector<StateCapture*> capture_list_;              // the same, for the pass
  int64_t kept_tokens_ = 0;
  StateCache::Id passing_state_ = 0;  // that the next one replaces
  JobResult result_;
  bool ended_ = false;
  Clock::time_point since_ = Clock::now();  // the phase it is in
  Clock::time_point reported_;
};

}  // namespace deltafin
