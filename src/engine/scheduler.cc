#include "deltafin/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "engine/ngram_source.h"
#include "engine/scheduler_impl.h"

namespace deltafin {

std::unique_ptr<Scheduler> Scheduler::Create(Engine& engine, const SchedulerOptions& options) {
  auto* impl = dynamic_cast<EngineImpl*>(&engine);
  DF_CHECK(impl != nullptr);
  const ModelInfo& info = engine.info();
  const auto check = [](bool good, const std::string& what) {
    if (!good) throw Error(ErrorCode::kInvalidArgument, what);
  };
  check(options.parallel >= 1 && options.parallel <= info.parallel_sessions,
        format("parallel: expected 1 to {}, which the engine was opened with room for, got {}",
               info.parallel_sessions, options.parallel));
  check(options.max_queued >= 0, format("queue: expected at least 0, got {}", options.max_queued));
  check(options.snapshot_tokens >= 0,
        format("tokens between kept states: expected at least 0, got {}", options.snapshot_tokens));
  check(options.snapshot_bytes <= info.snapshot_bytes,
        format("bytes of kept states: expected at most {}, which the engine was opened with room "
               "for, got {}",
               info.snapshot_bytes, options.snapshot_bytes));
  return std::make_unique<SchedulerImpl>(*impl, options);
}

// Keeps each layer's picks for those who watch.
class SchedulerImpl::PicksSink : public TraceSink {
 public:
  explicit PicksSink(SchedulerImpl& owner) : owner_(owner) {}

  bool WantsActivations() const override { return false; }
  void OnActivations(int64_t, TracePoint, std::span<const float>, int64_t) override {}
  void OnPicks(int64_t layer, std::span<const int32_t> ids, std::span<const float>,
               int64_t) override {
    const std::lock_guard lock(owner_.mutex_);
    std::vector<LayerPicks>& picks = owner_.picks_;
    auto it = std::find_if(picks.begin(), picks.end(),
                           [layer](const LayerPicks& p) { return p.layer >= layer; });
    if (it == picks.end() || it->layer != layer) it = picks.insert(it, LayerPicks{layer, {}});
    it->ids.assign(ids.begin(), ids.end());
  }

 private:
  SchedulerImpl& owner_;
};

SchedulerImpl::SchedulerImpl(EngineImpl& engine, const SchedulerOptions& options)
    : engine_(engine),
      options_(options),
      states_({options.snapshot_bytes, options.state_dir, options.state_dir_bytes},
              options.state_dir.empty() ? SessionOrigin() : engine.session_origin(),
              engine.info().context_tokens),
      policy_(engine.max_positions(), engine.weights_in_ram()),
      picks_sink_(std::make_unique<PicksSink>(*this)) {
  for (int i = 0; i < options.parallel; ++i) {
    timelines_.push_back(std::make_unique<Timeline>(engine.config(), engine.device(),
                                                    engine.cache_format(), engine.cache_spill()));
  }
  thread_ = std::thread([this] { Loop(); });
}

SchedulerImpl::~SchedulerImpl() {
  {
    const std::lock_guard lock(mutex_);
    accepts_ = false;
    quits_ = true;
    for (const auto& [id, job] : jobs_) job->Cancel();
  }
  wake_.notify_all();
  thread_.join();
}

std::optional<JobId> SchedulerImpl::Submit(Job job) {
  const std::unique_lock lock(mutex_);
  // Refused by name even when there is no room: it would be later too.
  auto run = std::make_shared<JobRun>(last_id_ + 1, std::move(job), engine_);
  if (!accepts_) return std::nullopt;
  // Those that a free timeline waits for do not count: the thread takes them in a moment. Nor do
  // cancelled ones, which it ends in a moment.
  const auto free = static_cast<int64_t>(options_.parallel) - stats_.running;
  const auto waiting = std::count_if(queue_.begin(), queue_.end(),
                                     [](const JobPtr& queued) { return !queued->cancelled(); });
  if (waiting >= options_.max_queued + free) return std::nullopt;
  ++last_id_;
  jobs_[last_id_] = run;
  queue_.push_back(std::move(run));
  wake_.notify_all();
  return last_id_;
}

void SchedulerImpl::Cancel(JobId id) {
  const std::lock_guard lock(mutex_);
  if (const auto job = jobs_.find(id); job != jobs_.end()) job->second->Cancel();
  wake_.notify_all();
}

SchedulerStats SchedulerImpl::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  stats.queued = std::ssize(queue_);
  return stats;
}

std::vector<LayerPicks> SchedulerImpl::last_picks() const {
  const std::lock_guard lock(mutex_);
  return picks_;
}

void SchedulerImpl::Stop(double seconds) {
  std::unique_lock lock(mutex_);
  accepts_ = false;
  const auto wait = std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e9));
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
  deadline_ = deadline_ ? std::min(*deadline_, deadline) : deadline;
  for (const JobPtr& job : queue_) job->Cancel();
  wake_.notify_all();
  idle_.wait(lock, [this] { return jobs_.empty(); });
}

// ---- the thread ----

void SchedulerImpl::Loop() {
  while (WaitForWork()) {
    EndUnwanted();
    AdmitQueued();
    Retire();
    try {
      if (!running_.empty()) RunPass();
    } catch (const std::exception& error) {  // no memory for it; nobody knows what it did
      for (const JobPtr& job : running_) {
        job->timeline()->whole = false;
        job->Fail(error.what());
      }
      states_.ReleaseRoom();
    }
    Retire();
  }
}

bool SchedulerImpl::WaitForWork() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return quits_ || !jobs_.empty(); });
  return !jobs_.empty();
}

bool SchedulerImpl::StopIsDue() const {
  const std::lock_guard lock(mutex_);
  return deadline_ && Clock::now() >= *deadline_;
}

// Between passes, and between layers for those that are in no pass.
void SchedulerImpl::EndUnwanted() {
  stop_is_due_ = StopIsDue();
  for (const JobPtr& job : running_) {
    if (stop_is_due_ || job->cancelled()) job->End(FinishReason::kCancelled);
  }
  EndCancelledInQueue();
}

void SchedulerImpl::EndCancelledInQueue() {
  std::vector<JobPtr> cancelled;
  {
    const std::lock_guard lock(mutex_);
    const auto unwanted = std::stable_partition(
        queue_.begin(), queue_.end(), [](const JobPtr& job) { return !job->cancelled(); });
    cancelled.assign(unwanted, queue_.end());
    queue_.erase(unwanted, queue_.end());
  }
  for (const JobPtr& job : cancelled) {
    job->End(FinishReason::kCancelled);
    Forget(*job);
  }
}

// Prompts that begin as one that is being read wait for the state that they can go on from.
bool SchedulerImpl::WaitsForAnother(const JobRun& job) const {
  if (!states_.keeps_any() || job.job().prompt_logprobs) return false;
  return std::any_of(running_.begin(), running_.end(), [&](const JobPtr& other) {
    return !other->ended() && other->reads_prompt() && other->WillShare(job.job().prompt);
  });
}

void SchedulerImpl::AdmitQueued() {
  while (std::ssize(running_) < options_.parallel) {
    JobPtr job;
    {
      const std::lock_guard lock(mutex_);
      const auto next = std::find_if(queue_.begin(), queue_.end(), [&](const JobPtr& queued) {
        return !WaitsForAnother(*queued);
      });
      if (next == queue_.end()) return;
      job = std::move(*next);
      queue_.erase(next);
      ++stats_.running;
    }
    running_.push_back(job);
    try {
      job->Start(TimelineFor(*job));
    } catch (const std::exception& error) {  // no memory for what it needs
      job->Fail(error.what());
    }
  }
}

bool SchedulerImpl::IsFree(const Timeline& timeline) const {
  return std::none_of(running_.begin(), running_.end(),
                      [&](const JobPtr& job) { return job->timeline() == &timeline; });
}

// What an earlier job left in a free timeline goes on without a copy. Else the timeline that was
// left longest ago gets the most useful kept state.
Timeline& SchedulerImpl::TimelineFor(const JobRun& job) {
  const WantedText wanted = job.wanted_text();
  // Log probabilities of a prompt come from its every position.
  const bool from_start = options_.always_from_start || job.job().prompt_logprobs;
  Timeline* best = nullptr;
  Timeline* oldest = nullptr;
  int64_t most = 0;
  for (const auto& timeline : timelines_) {
    if (!IsFree(*timeline)) continue;
    if (!timeline->whole) timeline->Clear();
    const KeptText& text = timeline->text;
    const int64_t useful = UsefulTokens(text.tokens, !text.logits.empty(), text.first_generated,
                                        text.answer_key, wanted);
    if (useful > most) {
      most = useful;
      best = timeline.get();
    }
    if (oldest == nullptr || timeline->last_use < oldest->last_use) oldest = timeline.get();
  }
  const bool goes_on = best != nullptr && !from_start && states_.MostUseful(wanted) <= most;
  Timeline& chosen = goes_on ? *best : *oldest;
  if (!goes_on) {
    chosen.Clear();
    if (!from_start) {
      if (auto text = states_.Restore(wanted, 0, chosen.state)) chosen.text = std::move(*text);
    }
    CountStates();
  }
  chosen.last_use = ++clock_;
  return chosen;
}

void SchedulerImpl::KeepStates(const std::vector<PassRun>& pass) {
  if (!states_.keeps_any()) return;
  for (const PassRun& part : pass) {
    if (part.left) continue;
    part.job->KeepCaptured(states_);
    if (part.job->ended() || !part.job->StateIsDue(options_.snapshot_tokens)) continue;
    part.job->KeepState(states_);
  }
  states_.ReleaseRoom();
  CountStates();
}

void SchedulerImpl::CountStates() {
  const std::lock_guard lock(mutex_);
  stats_.snapshot_bytes = states_.ram_bytes();
  stats_.state_dir_bytes = states_.file_bytes();
  stats_.failed_states = states_.failures();
}

void SchedulerImpl::Retire() {
  for (const JobPtr& job : running_) {
    if (!job->ended()) continue;
    if (const Timeline* timeline = job->timeline(); timeline != nullptr && timeline->whole) {
      job->LabelText();
      if (std::ssize(timeline->text.tokens) > job->kept_tokens()) job->KeepState(states_);
      CountStates();
    }
    {
      const std::lock_guard lock(mutex_);
      --stats_.running;
      stats_.cached_tokens += static_cast<uint64_t>(job->result().cached_tokens);
    }
    Forget(*job);
  }
  std::erase_if(running_, [](const JobPtr& job) { return job->ended(); });
}

void SchedulerImpl::Forget(const JobRun& job) {
  const std::lock_guard lock(mutex_);
  const JobResult& result = job.result();
  ++(!result.error.empty()                              ? stats_.failed_jobs
     : result.finish_reason == FinishReason::kCancelled ? stats_.cancelled_jobs
                                                        : stats_.finished_jobs);
  jobs_.erase(job.id());
  if (jobs_.empty()) idle_.notify_all();
}

}  // namespace deltafin
