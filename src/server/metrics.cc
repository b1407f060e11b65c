#include "server/metrics.h"

#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"

namespace deltafin {
namespace {

class Metrics {
 public:
  template <typename Value>
  void Counter(std::string_view name, std::string_view help, Value value) {
    Head(name, help, "counter");
    Line(name, "", value);
  }
  template <typename Value>
  void Gauge(std::string_view name, std::string_view help, Value value) {
    Head(name, help, "gauge");
    Line(name, "", value);
  }
  // One counter for each value of a label. The values are ours: nothing in them needs escaping.
  template <typename Value>
  void Counters(std::string_view name, std::string_view help, std::string_view label,
                const std::vector<std::pair<std::string, Value>>& values) {
    Head(name, help, "counter");
    for (const auto& [key, value] : values) {
      Line(name, format("{{{}=\"{}\"}}", label, key), value);
    }
  }

  std::string Take() { return std::move(text_); }

 private:
  void Head(std::string_view name, std::string_view help, std::string_view type) {
    text_ += format("# HELP deltafin_{} {}\n# TYPE deltafin_{} {}\n", name, help, name, type);
  }
  template <typename Value>
  void Line(std::string_view name, std::string_view labels, Value value) {
    text_ += format("deltafin_{}{} {}\n", name, labels, value);
  }

  std::string text_;
};

}  // namespace

std::string MetricsText(const Engine& engine, const SchedulerStats& scheduler,
                        const HttpServerStats& http) {
  Metrics metrics;
  metrics.Gauge("jobs_running", "Answers that advance now.", scheduler.running);
  metrics.Gauge("jobs_queued", "Answers that wait.", scheduler.queued);
  metrics.Counters<uint64_t>(
      "jobs_total", "Answers that ended; cancelled: by a client that left, or at a stop string.",
      "end",
      {{"finished", scheduler.finished_jobs},
       {"failed", scheduler.failed_jobs},
       {"cancelled", scheduler.cancelled_jobs}});
  metrics.Counter("prompt_tokens_total", "Prompt tokens that were computed.",
                  scheduler.prompt_tokens);
  metrics.Counter("cached_prompt_tokens_total", "Prompt tokens whose state was there.",
                  scheduler.cached_tokens);
  metrics.Counter("new_tokens_total", "Tokens that were generated.", scheduler.new_tokens);
  metrics.Counter("passes_total", "Passes over the weights.", scheduler.passes);
  metrics.Gauge("snapshot_bytes", "Memory of states that later prompts may begin with.",
                scheduler.snapshot_bytes);
  metrics.Gauge("state_file_bytes", "Files of such states.", scheduler.state_dir_bytes);
  metrics.Counter("failed_states_total", "Such states that could not be written or read.",
                  scheduler.failed_states);

  const ExpertStoreCounters experts = engine.expert_counters();
  metrics.Counter("experts_requested_total", "Experts that the routers picked.", experts.requested);
  metrics.Counter("experts_hit_total", "Of those, already in memory.", experts.hits);
  metrics.Counters<uint64_t>("expert_read_bytes_total", "Bytes of experts read, by why.", "why",
                             {{"demand", experts.bytes_demand},
                              {"ahead", experts.bytes_ahead},
                              {"warm", experts.bytes_warm}});
  const EngineCounters passes = engine.counters();
  metrics.Counters<uint64_t>("read_bytes_total", "Bytes read, by kind.", "kind",
                             {{"spine", passes.spine_bytes},
                              {"expert", passes.expert_bytes},
                              {"embedding", passes.embedding_bytes},
                              {"head", passes.head_bytes},
                              {"context", passes.context_bytes}});
  metrics.Counter("network_bytes_total", "Bytes of weights that came from the hub.",
                  passes.network_bytes);
  std::vector<std::pair<std::string, double>> seconds;
  for (size_t i = 0; i < kNumPhases; ++i) {
    seconds.emplace_back(PhaseName(static_cast<Phase>(i)), passes.seconds[i]);
  }
  metrics.Counters<double>("pass_seconds_total", "Time of the passes, by what it went to.", "phase",
                           seconds);
  metrics.Counter("expert_wait_seconds_total", "Time for which computing waited for experts.",
                  experts.wait_seconds);

  metrics.Gauge("http_connections", "Open connections.", http.connections);
  metrics.Counter("http_accepted_total", "Connections that came.", http.accepted);
  metrics.Counter("http_refused_total", "Connections closed for want of room.", http.refused);
  metrics.Counter("http_timed_out_total", "Requests that did not arrive in time.", http.timed_out);
  std::vector<std::pair<std::string, uint64_t>> responses;
  for (const auto& [status, count] : http.responses) {
    responses.emplace_back(std::to_string(status), count);
  }
  metrics.Counters<uint64_t>("http_responses_total", "Answers, by status.", "status", responses);
  return metrics.Take();
}

}  // namespace deltafin
