#include "server/live_feed.h"

#include <algorithm>
#include <utility>

#include "server/answer_writer.h"

namespace deltafin {
namespace {

constexpr double kIdleSeconds = 5;
constexpr double kRateSeconds = 1;
constexpr int64_t kMaxShownPositions = 64;
// A watcher that takes nothing misses events.
constexpr size_t kMaxUnsentBytes = 256 << 10;

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Json TotalsJson(const SchedulerStats& stats) {
  return {{"finished_jobs", stats.finished_jobs},
          {"failed_jobs", stats.failed_jobs},
          {"cancelled_jobs", stats.cancelled_jobs},
          {"prompt_tokens", stats.prompt_tokens},
          {"cached_tokens", stats.cached_tokens},
          {"new_tokens", stats.new_tokens},
          {"passes", stats.passes},
          {"snapshot_bytes", stats.snapshot_bytes}};
}

Json ExpertsJson(const ExpertStoreCounters& experts) {
  return {{"requested", experts.requested},       {"hits", experts.hits},
          {"ahead_hits", experts.ahead_hits},     {"ahead_late", experts.ahead_late},
          {"bytes_demand", experts.bytes_demand}, {"bytes_ahead", experts.bytes_ahead},
          {"bytes_wasted", experts.bytes_wasted}, {"bytes_warm", experts.bytes_warm},
          {"wait_seconds", experts.wait_seconds}};
}

}  // namespace

LiveFeed::LiveFeed(const Engine& engine, const Scheduler& scheduler, const GenerationList& list,
                   const Json& hello)
    : engine_(engine), scheduler_(scheduler), list_(list), hello_(ServerSentEvent(hello)) {}

void LiveFeed::Add(const std::shared_ptr<Exchange>& exchange) {
  const auto watcher = std::make_shared<Watcher>(Watcher{exchange, false});
  const Sample now = Take();
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  head.body = hello_ + State(now, now.stats.passes > 0);
  exchange->BeginStream(std::move(head));
  exchange->OnClientLeft([watcher] { watcher->has_left = true; });
  watchers_.push_back(watcher);
}

void LiveFeed::Tick() {
  std::erase_if(watchers_, [](const auto& watcher) { return watcher->has_left; });
  if (watchers_.empty()) return samples_.clear();
  Sample now = Take();
  const bool is_busy = now.stats.running + now.stats.queued > 0;
  // One more after the last token: everything is at rest.
  if (is_busy || was_busy_ || Seconds(now.time - last_sent_) >= kIdleSeconds) {
    const std::string event = State(now, now.stats.passes != shown_passes_);
    shown_passes_ = now.stats.passes;
    for (const auto& watcher : watchers_) {
      if (watcher->exchange->unsent_bytes() < kMaxUnsentBytes) watcher->exchange->Write(event);
    }
    last_sent_ = now.time;
  }
  was_busy_ = is_busy;
  samples_.push_back(now);
  while (samples_.size() > 1 &&
         Seconds(samples_.back().time - samples_.front().time) > kRateSeconds) {
    samples_.pop_front();
  }
}

void LiveFeed::Stop() {
  for (const auto& watcher : std::exchange(watchers_, {})) watcher->exchange->EndStream();
}

LiveFeed::Sample LiveFeed::Take() const {
  return {Clock::now(), scheduler_.stats(), engine_.expert_counters(), engine_.counters()};
}

std::string LiveFeed::State(const Sample& now, bool with_picks) {
  Json jobs = Json::array();
  for (const WatchedJob& job : list_.jobs()) {
    Json json{{"id", job.id}};
    json.update(ProgressJson(job.progress));
    json["new_tokens"] = job.new_tokens;
    json["seconds"] = job.seconds;
    jobs.push_back(std::move(json));
  }
  Json state{{"type", "state"},
             {"time", Seconds(now.time - began_)},
             {"running", now.stats.running},
             {"queued", now.stats.queued},
             {"totals", TotalsJson(now.stats)},
             {"experts", ExpertsJson(now.experts)},
             {"rates", Rates(now)},
             {"jobs", std::move(jobs)}};
  if (with_picks) state["picks"] = Picks();
  return ServerSentEvent(state);
}

Json LiveFeed::Rates(const Sample& now) const {
  const Sample& then = samples_.empty() ? now : samples_.front();
  const double seconds = Seconds(now.time - then.time);
  const auto rate = [&](auto before, auto after) {
    return seconds > 0 ? (static_cast<double>(after) - static_cast<double>(before)) / seconds : 0.0;
  };
  const uint64_t requested = now.experts.requested - then.experts.requested;
  const uint64_t hits = now.experts.hits - then.experts.hits;
  Json hit_rate;
  if (requested > 0) hit_rate = static_cast<double>(hits) / static_cast<double>(requested);
  const double ram_bytes =
      static_cast<double>(hits) * static_cast<double>(engine_.info().expert_bytes);
  const EngineCounters spent = now.engine - then.engine;
  Json phases = Json::object();
  for (size_t i = 0; i < kNumPhases && spent.pass_seconds() > 0; ++i) {
    phases[PhaseName(static_cast<Phase>(i))] = spent.seconds[i] / spent.pass_seconds();
  }
  return {{"new_tokens", rate(then.stats.new_tokens, now.stats.new_tokens)},
          {"prompt_tokens", rate(then.stats.prompt_tokens, now.stats.prompt_tokens)},
          {"passes", rate(then.stats.passes, now.stats.passes)},
          {"disk_bytes", rate(then.experts.bytes_read(), now.experts.bytes_read())},
          {"spine_bytes", rate(uint64_t{0}, spent.bytes_read() - spent.expert_bytes)},
          {"ram_bytes", rate(0.0, ram_bytes)},
          {"network_bytes", rate(uint64_t{0}, spent.network_bytes)},
          {"busy", rate(0.0, spent.pass_seconds())},
          {"phases", std::move(phases)},
          {"hit_rate", std::move(hit_rate)}};
}

Json LiveFeed::Picks() const {
  const auto most = static_cast<size_t>(kMaxShownPositions *
                                        std::max<int64_t>(1, engine_.info().experts_per_token));
  Json picks = Json::array();
  for (const LayerPicks& layer : scheduler_.last_picks()) {
    const size_t first = layer.ids.size() > most ? layer.ids.size() - most : 0;
    picks.push_back(
        {{"layer", layer.layer},
         {"ids", std::vector<int32_t>(layer.ids.begin() + static_cast<std::ptrdiff_t>(first),
                                      layer.ids.end())}});
  }
  return picks;
}

Json LiveHello(const Engine& engine, const std::string& version, const std::string& model,
               const SchedulerOptions& scheduler) {
  const ModelInfo& info = engine.info();
  Json plan = Json::array();
  for (const PlanLine& line : engine.plan()) {
    plan.push_back({{"what", line.what}, {"bytes", line.bytes}, {"note", line.note}});
  }
  return {{"type", "hello"},
          {"version", version},
          {"model", model},
          {"num_layers", info.num_layers},
          {"num_experts", info.num_experts},
          {"experts_per_token", info.experts_per_token},
          {"expert_bytes", info.expert_bytes},
          {"bytes_per_token", info.bytes_per_token},
          {"context_tokens", info.context_tokens},
          {"parallel", scheduler.parallel},
          {"max_queued", scheduler.max_queued},
          {"describe", engine.Describe()},
          {"plan", std::move(plan)}};
}

}  // namespace deltafin
