#include "deltafin/trace_analysis.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"
#include "store/cache_simulation.h"
#include "store/eviction_policy.h"

namespace deltafin {
namespace {

// One layer's picks, step after step.
class LayerAnalysis {
 public:
  explicit LayerAnalysis(int64_t num_experts) : uses_(static_cast<size_t>(num_experts)) {}

  void Take(const std::vector<int32_t>& ids) {
    if (!last_.empty()) {
      foretold_of_ += static_cast<int64_t>(ids.size());
      const std::vector<int32_t> hottest = Hottest(ids.size());
      for (int32_t id : ids) {
        reused_ += Contains(last_, id);
        foretold_by_heat_ += Contains(hottest, id);
      }
    }
    for (int32_t id : ids) ++uses_[static_cast<size_t>(id)];
    picks_ += static_cast<int64_t>(ids.size());
    last_ = ids;
  }

  LayerTraceReport Report(int64_t layer) const {
    LayerTraceReport report;
    report.layer = layer;
    report.picks = picks_;
    report.reuse = Share(reused_);
    report.recall_of_heat = Share(foretold_by_heat_);
    const int64_t most = *std::max_element(uses_.begin(), uses_.end());
    report.load_max_over_mean = static_cast<double>(most) * static_cast<double>(uses_.size()) /
                                static_cast<double>(std::max<int64_t>(1, picks_));
    report.never_used = std::count(uses_.begin(), uses_.end(), 0);
    return report;
  }
  int64_t picks() const { return picks_; }
  int64_t reused() const { return reused_; }
  int64_t foretold_by_heat() const { return foretold_by_heat_; }
  int64_t foretold_of() const { return foretold_of_; }

 private:
  static bool Contains(const std::vector<int32_t>& ids, int32_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  }
  double Share(int64_t count) const {
    return foretold_of_ == 0 ? 0 : static_cast<double>(count) / static_cast<double>(foretold_of_);
  }
  std::vector<int32_t> Hottest(size_t count) const {
    std::vector<int32_t> ids(uses_.size());
    std::iota(ids.begin(), ids.end(), 0);
    count = std::min(count, ids.size());
    std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                      [&](int32_t a, int32_t b) {
                        return std::pair(-uses_[static_cast<size_t>(a)], a) <
                               std::pair(-uses_[static_cast<size_t>(b)], b);
                      });
    ids.resize(count);
    return ids;
  }

  std::vector<int64_t> uses_;  // of each expert
  std::vector<int32_t> last_;
  int64_t picks_ = 0;
  int64_t foretold_of_ = 0;  // picks of all steps but the first
  int64_t reused_ = 0;
  int64_t foretold_by_heat_ = 0;
};

// Gives up what is used again last of all, which only a trace can tell: the bound for all others.
class OptimalPolicy final : public EvictionPolicy {
 public:
  OptimalPolicy(const RouterTrace& trace, const ExpertShape& shape)
      : shape_(shape),
        uses_(static_cast<size_t>(shape.num_keys())),
        next_(static_cast<size_t>(shape.num_keys())) {
    for (size_t pass = 0; pass < trace.picks.size(); ++pass) {
      for (int32_t id : trace.picks[pass].ids)
        UsesOf(Key(trace.picks[pass].layer, id)).push_back(pass);
    }
  }

  void OnPass(int64_t layer, std::span<const int32_t> experts) override {
    for (int32_t expert : experts) {
      const ExpertKey key = Key(layer, expert);
      const bool is_offered = offered_.erase({NextUse(key), key}) > 0;
      ++next_[static_cast<size_t>(key)];
      if (is_offered) Offer(key);
    }
  }
  void Offer(ExpertKey key) override { offered_.emplace(NextUse(key), key); }
  void Withdraw(ExpertKey key) override { offered_.erase({NextUse(key), key}); }
  std::optional<ExpertKey> Victim() override {
    if (offered_.empty()) return std::nullopt;
    return offered_.rbegin()->second;
  }

 private:
  ExpertKey Key(int64_t layer, int32_t expert) const { return shape_.Key(layer, expert); }
  std::vector<size_t>& UsesOf(ExpertKey key) { return uses_[static_cast<size_t>(key)]; }
  size_t NextUse(ExpertKey key) {
    const size_t next = next_[static_cast<size_t>(key)];
    return next < UsesOf(key).size() ? UsesOf(key)[next] : std::numeric_limits<size_t>::max();
  }

  const ExpertShape shape_;
  std::vector<std::vector<size_t>> uses_;  // the passes that use each expert
  std::vector<size_t> next_;               // in uses_: the first that has not been
  std::set<std::pair<size_t, ExpertKey>> offered_;
};

double SimulateHits(const RouterTrace& trace, const ExpertShape& shape, int64_t num_slots,
                    EvictionPolicy& policy) {
  CacheSimulation simulation(shape, num_slots, policy);
  for (const TracedPicks& picks : trace.picks) simulation.Pass(picks.layer, picks.ids);
  return static_cast<double>(simulation.num_hits()) /
         static_cast<double>(simulation.num_requested());
}

int64_t CountPicks(const RouterTrace& trace) {
  int64_t count = 0;
  for (const TracedPicks& picks : trace.picks) count += static_cast<int64_t>(picks.ids.size());
  return count;
}

}  // namespace

TraceReport AnalyseTrace(const RouterTrace& trace, int64_t num_experts) {
  TraceReport report;
  report.num_steps = trace.num_steps;
  report.num_experts = std::max(trace.num_experts, num_experts);
  std::vector<LayerAnalysis> layers(static_cast<size_t>(trace.num_layers),
                                    LayerAnalysis(report.num_experts));
  for (const TracedPicks& picks : trace.picks) {
    layers[static_cast<size_t>(picks.layer)].Take(picks.ids);
  }
  int64_t reused = 0;
  int64_t foretold = 0;
  int64_t foretold_of = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const LayerAnalysis& analysis = layers[layer];
    if (analysis.picks() == 0) continue;
    report.layers.push_back(analysis.Report(static_cast<int64_t>(layer)));
    report.distinct_used += report.num_experts - report.layers.back().never_used;
    reused += analysis.reused();
    foretold += analysis.foretold_by_heat();
    foretold_of += analysis.foretold_of();
  }
  const double of = static_cast<double>(std::max<int64_t>(1, foretold_of));
  report.reuse = static_cast<double>(reused) / of;
  report.recall_of_heat = static_cast<double>(foretold) / of;
  report.picks_per_step =
      static_cast<double>(CountPicks(trace)) / static_cast<double>(trace.num_steps);
  return report;
}

TraceSimulation SimulateTrace(const RouterTrace& trace, std::span<const int64_t> slots) {
  TraceSimulation simulation;
  simulation.slots.assign(slots.begin(), slots.end());
  if (slots.empty()) {
    const double working_set =
        static_cast<double>(CountPicks(trace)) / static_cast<double>(trace.num_steps);
    for (const double part : {0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0}) {
      simulation.slots.push_back(std::max<int64_t>(1, std::llround(part * working_set)));
    }
  }
  const ExpertShape shape{trace.num_layers, trace.num_experts};
  const std::pair<const char*, std::function<std::unique_ptr<EvictionPolicy>(ExpertHeat&)>>
      policies[] = {
          {"next use", [](ExpertHeat& heat) { return MakeNextUsePolicy(heat); }},
          {"LRU", [](ExpertHeat&) { return MakeLruPolicy(); }},
          {"LRU per layer", [&](ExpertHeat&) { return MakeLayerLruPolicy(shape); }},
          {"LFU, decayed", [&](ExpertHeat&) { return MakeFrequencyPolicy(shape); }},
          {"optimum", [&](ExpertHeat&) { return std::make_unique<OptimalPolicy>(trace, shape); }}};
  for (const auto& [name, make] : policies) {
    SimulatedPolicy& policy = simulation.policies.emplace_back();
    policy.name = name;
    for (const int64_t num_slots : simulation.slots) {
      ExpertHeat heat(shape);
      policy.hit_rates.push_back(SimulateHits(trace, shape, num_slots, *make(heat)));
    }
  }
  return simulation;
}

}  // namespace deltafin
