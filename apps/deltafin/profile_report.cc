#include "profile_report.h"

#include <algorithm>
#include <cstdio>

#include "gigabytes.h"

namespace deltafin {
namespace {

// More rows than a screen has say less: then only the last ones are shown.
constexpr size_t kMaxRows = 24;

double Ratio(double part, double of) { return of > 0 ? part / of : 0; }

// Of the time in which the disk worked, the part in which the computation did not wait for it.
double Overlap(const EngineCounters& c) {
  return c.disk_seconds > 0 ? std::clamp(1 - c.wait_seconds() / c.disk_seconds, 0.0, 1.0) : 0;
}

void PrintRow(const std::string& name, const EngineCounters& c) {
  std::fprintf(stderr, "%-16s %8.3f", name.c_str(), c.pass_seconds());
  for (const double seconds : c.seconds) std::fprintf(stderr, " %11.3f", seconds);
  std::fprintf(stderr, " %9.3f\n", Gigabytes(c.bytes_read()));
}

double Recall(const std::vector<LayerExpertCounters>& layers) {
  uint64_t of = 0;
  uint64_t foretold = 0;
  for (const LayerExpertCounters& layer : layers) {
    of += layer.foretold_of;
    foretold += layer.foretold;
  }
  return Ratio(static_cast<double>(foretold), static_cast<double>(of));
}

Json CountersJson(const std::string& name, const EngineCounters& c) {
  Json phases = Json::object();
  for (size_t i = 0; i < kNumPhases; ++i) phases[PhaseName(static_cast<Phase>(i))] = c.seconds[i];
  return {{"name", name},
          {"passes", c.passes},
          {"positions", c.positions},
          {"seconds", c.pass_seconds()},
          {"phases", phases},
          {"bytes",
           {{"spine", c.spine_bytes},
            {"expert", c.expert_bytes},
            {"embedding", c.embedding_bytes},
            {"head", c.head_bytes},
            {"context", c.context_bytes}}},
          {"disk_seconds", c.disk_seconds},
          {"overlap", Overlap(c)}};
}

}  // namespace

ProfileReport::ProfileReport(const Engine& engine, double memory_bytes_per_second)
    : engine_(engine),
      memory_limit_(memory_bytes_per_second),
      last_{"", engine.counters(), engine.expert_counters()} {}

void ProfileReport::EndRow(const std::string& name) {
  Row now{name, engine_.counters(), engine_.expert_counters()};
  Row row = now;
  row.counters = now.counters - last_.counters;
  row.experts.requested -= last_.experts.requested;
  row.experts.hits -= last_.experts.hits;
  if (row.counters.passes == 0) return;  // a pass with guesses yields several tokens
  last_ = std::move(now);
  rows_.push_back(std::move(row));
}

ProfileReport::Row ProfileReport::Total() const {
  Row total;
  total.name = "all";
  for (const Row& row : rows_) {
    // a - (0 - b) is a + b.
    total.counters = row.counters - (EngineCounters() - total.counters);
    total.experts.requested += row.experts.requested;
    total.experts.hits += row.experts.hits;
  }
  return total;
}

// Weights that the computation went through, over the time it took without waits.
double ProfileReport::MemoryBytesPerSecond(const Row& row) const {
  const ModelInfo& info = engine_.info();
  const double bytes =
      static_cast<double>(row.counters.passes * info.spine_bytes) +
      static_cast<double>(row.experts.requested) * static_cast<double>(info.expert_bytes);
  return Ratio(bytes, row.counters.pass_seconds() - row.counters.wait_seconds());
}

void ProfileReport::Print() const {
  std::fprintf(stderr, "%-16s %8s", "pass", "seconds");
  for (size_t i = 0; i < kNumPhases; ++i) {
    std::fprintf(stderr, " %11s", PhaseName(static_cast<Phase>(i)));
  }
  std::fprintf(stderr, " %9s\n", "GB read");
  const size_t hidden = rows_.size() > kMaxRows ? rows_.size() - kMaxRows : 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (i == 0 || i >= hidden) PrintRow(rows_[i].name, rows_[i].counters);
    if (i == 0 && hidden > 1) std::fprintf(stderr, "... %zu rows ...\n", hidden - 1);
  }
  const Row total = Total();
  const EngineCounters& c = total.counters;
  if (rows_.size() > 1) PrintRow(total.name, c);
  const double disk_limit = engine_.disk_bytes_per_second();
  const double disk_rate = Ratio(static_cast<double>(c.bytes_read()), c.disk_seconds);
  std::fprintf(stderr,
               "read: spine %.3f GB, experts %.3f, embedding %.6f, head %.3f, context %.3f; the "
               "disk worked %.3f s at %.2f GB/s",
               Gigabytes(c.spine_bytes), Gigabytes(c.expert_bytes), Gigabytes(c.embedding_bytes),
               Gigabytes(c.head_bytes), Gigabytes(c.context_bytes), c.disk_seconds,
               disk_rate / 1e9);
  if (disk_limit > 0) {
    std::fprintf(stderr, " (%.0f %% of the %.2f measured)", 100 * disk_rate / disk_limit,
                 disk_limit / 1e9);
  }
  std::fprintf(stderr, "; %.0f %% of that time behind the computation\n", 100 * Overlap(c));
  std::fprintf(stderr, "experts in RAM: %.1f %%; foretold: %.1f %%; weights computed at %.2f GB/s",
               100 * Ratio(static_cast<double>(total.experts.hits),
                           static_cast<double>(total.experts.requested)),
               100 * Recall(engine_.layer_expert_counters()), MemoryBytesPerSecond(total) / 1e9);
  if (memory_limit_ > 0) {
    std::fprintf(stderr, " (%.0f %% of the %.2f measured)",
                 100 * MemoryBytesPerSecond(total) / memory_limit_, memory_limit_ / 1e9);
  }
  std::fprintf(stderr, "\n");
}

Json ProfileReport::ToJson() const {
  Json rows = Json::array();
  for (const Row& row : rows_) rows.push_back(CountersJson(row.name, row.counters));
  const Row total = Total();
  return {{"passes", rows},
          {"total", CountersJson(total.name, total.counters)},
          {"expert_hits", Ratio(static_cast<double>(total.experts.hits),
                                static_cast<double>(total.experts.requested))},
          {"foretold", Recall(engine_.layer_expert_counters())},
          {"disk_bytes_per_second",
           Ratio(static_cast<double>(total.counters.bytes_read()), total.counters.disk_seconds)},
          {"disk_limit", engine_.disk_bytes_per_second()},
          {"memory_bytes_per_second", MemoryBytesPerSecond(total)},
          {"memory_limit", memory_limit_}};
}

}  // namespace deltafin
