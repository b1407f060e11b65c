#include "base/phase_clock.h"

#include <chrono>
#include <utility>

namespace deltafin {

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kSpineWait:
      return "spine wait";
    case Phase::kExpertWait:
      return "expert wait";
    case Phase::kContextWait:
      return "context wait";
    case Phase::kKda:
      return "KDA";
    case Phase::kMla:
      return "MLA";
    case Phase::kDense:
      return "dense";
    case Phase::kShared:
      return "shared";
    case Phase::kExperts:
      return "experts";
    case Phase::kForesight:
      return "foresight";
    case Phase::kHead:
      return "head";
    case Phase::kOther:
      return "other";
  }
  return "";
}

EngineCounters operator-(const EngineCounters& later, const EngineCounters& earlier) {
  EngineCounters d = later;
  d.passes -= earlier.passes;
  d.positions -= earlier.positions;
  for (size_t i = 0; i < kNumPhases; ++i) d.seconds[i] -= earlier.seconds[i];
  d.spine_bytes -= earlier.spine_bytes;
  d.expert_bytes -= earlier.expert_bytes;
  d.embedding_bytes -= earlier.embedding_bytes;
  d.head_bytes -= earlier.head_bytes;
  d.context_bytes -= earlier.context_bytes;
  d.network_bytes -= earlier.network_bytes;
  d.disk_seconds -= earlier.disk_seconds;
  return d;
}

int PhaseClock::Enter(int phase) noexcept {
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::steady_clock::now().time_since_epoch())
                          .count();
  if (current_ != kNone) {
    nanoseconds_[static_cast<size_t>(current_)].fetch_add(now - since_, std::memory_order_relaxed);
  }
  since_ = now;
  return std::exchange(current_, phase);
}

void PhaseClock::AddTo(EngineCounters& counters) const {
  counters.passes += passes_.load(std::memory_order_relaxed);
  counters.positions += positions_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < kNumPhases; ++i) {
    counters.seconds[i] +=
        1e-9 * static_cast<double>(nanoseconds_[i].load(std::memory_order_relaxed));
  }
}

}  // namespace deltafin
