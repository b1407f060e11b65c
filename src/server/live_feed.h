// GET /api/live: what the machine does, for people who watch (docs/server.md). I/O thread.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "deltafin/engine.h"
#include "deltafin/json.h"
#include "deltafin/scheduler.h"
#include "server/generation.h"
#include "server/http_message.h"

namespace deltafin {

class LiveFeed {
 public:
  static constexpr double kTickSeconds = 0.25;

  // `hello`: the first event.
  LiveFeed(const Engine& engine, const Scheduler& scheduler, const GenerationList& list,
           const Json& hello);

  void Add(const std::shared_ptr<Exchange>& watcher);
  // To be called every kTickSeconds.
  void Tick();
  // Every stream ends.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Sample {
    Clock::time_point time;
    SchedulerStats stats;
    ExpertStoreCounters experts;
    EngineCounters engine;
  };
  struct Watcher {
    std::shared_ptr<Exchange> exchange;
    bool has_left = false;
  };

  Sample Take() const;
  std::string State(const Sample& now, bool with_picks);
  Json Rates(const Sample& now) const;
  Json Picks() const;

  const Engine& engine_;
  const Scheduler& scheduler_;
  const GenerationList& list_;
  const std::string hello_;
  const Clock::time_point began_ = Clock::now();
  std::vector<std::shared_ptr<Watcher>> watchers_;
  std::deque<Sample> samples_;  // of the last second, oldest first
  Clock::time_point last_sent_;
  uint64_t shown_passes_ = 0;
  bool was_busy_ = false;
};

// The `hello` of a server.
Json LiveHello(const Engine& engine, const std::string& version, const std::string& model,
               const SchedulerOptions& scheduler);

}  // namespace deltafin
