// The scheduler behind include/deltafin/scheduler.h. Internal to engine/.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "deltafin/scheduler.h"
#include "engine/engine_impl.h"
#include "engine/job_run.h"
#include "engine/pass_policy.h"
#include "engine/speculation.h"
#include "engine/state_cache.h"
#include "engine/timeline.h"

namespace deltafin {

class SchedulerImpl : public Scheduler {
 public:
  SchedulerImpl(EngineImpl& engine, const SchedulerOptions& options);
  ~SchedulerImpl() override;

  std::optional<JobId> Submit(Job job) override;
  void Cancel(JobId id) override;
  SchedulerStats stats() const override;
  std::vector<LayerPicks> last_picks() const override;
  void Stop(double seconds) override;

 private:
  using Clock = std::chrono::steady_clock;
  using JobPtr = std::shared_ptr<JobRun>;
  class PicksSink;
  struct PassRun {
    JobRun* job = nullptr;
    int64_t tokens = 0;
    bool reads_prompt = false;
    bool captures = false;  // states at shared lengths inside
    bool left = false;      // in the middle
  };

  // The thread: scheduler.cc, and its passes: scheduler_pass.cc.
  void Loop();
  bool WaitForWork();  // false: quit
  bool StopIsDue() const;
  void EndUnwanted();
  void EndCancelledInQueue();
  bool WaitsForAnother(const JobRun& job) const;
  void AdmitQueued();
  Timeline& TimelineFor(const JobRun& job);
  bool IsFree(const Timeline& timeline) const;
  void KeepStates(const std::vector<PassRun>& pass);
  void CountStates();
  void Retire();
  void Forget(const JobRun& job);

  std::vector<PassRun> ChooseRuns();
  bool RoomForCaptures(int64_t count);
  void AddPrompts(int64_t positions, int64_t logits_rows, std::vector<PassRun>& pass);
  void RunPass();
  bool RunDraftPass(JobRun& job);  // false: there is no draft
  bool Forward(std::span<const Run> runs, const LogitsSink& sink, std::vector<PassRun>& pass);
  void OnLayer(int64_t layer, const std::vector<PassRun>& pass);
  bool Leaves(PassRun& part) const;
  void ReportToQueue();
  void CountNewTokens(int64_t count);

  EngineImpl& engine_;
  const SchedulerOptions options_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::deque<JobPtr> queue_;
  std::map<JobId, JobPtr> jobs_;  // queued and running
  JobId last_id_ = 0;
  bool accepts_ = true;
  std::atomic<bool> quits_ = false;            // read without it too
  std::optional<Clock::time_point> deadline_;  // of Stop
  SchedulerStats stats_;
  std::vector<LayerPicks> picks_;

  // Of the thread alone.
  StateCache states_;
  std::vector<std::unique_ptr<Timeline>> timelines_;
  uint64_t clock_ = 0;  // of their uses
  std::vector<JobPtr> running_;
  bool stop_is_due_ = false;
  PassPolicy policy_;
  std::unique_ptr<TraceSink> picks_sink_;
  std::unique_ptr<Speculation> speculation_;
  JobId drafting_for_ = 0;

  std::thread thread_;
};

}  // namespace deltafin
