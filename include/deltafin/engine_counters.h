// Where the time and the bytes of the passes went.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace deltafin {

// What the thread that runs the passes does. Each moment counts for one phase: a wait inside an
// attention counts as a wait.
enum class Phase : uint8_t {
  kSpineWait,    // a piece of the spine has not come yet
  kExpertWait,   // nor has any expert that is still to be computed
  kContextWait,  // nor has a page of the latent cache that is not in RAM
  kKda,
  kMla,
  kDense,    // the MLP of layers without experts
  kShared,   // router, shared experts, latent projections
  kExperts,  // routed ones
  kForesight,
  kHead,
  kOther,  // embedding, norms, residual mixes
};
inline constexpr size_t kNumPhases = 11;

// "spine wait", for people.
const char* PhaseName(Phase phase);

// Since the engine was opened. The difference of two is what happened in between.
struct EngineCounters {
  // Zeros unless the engine was opened with `profile`.
  uint64_t passes = 0;
  uint64_t positions = 0;                       // of all passes
  std::array<double, kNumPhases> seconds = {};  // by Phase; the sum is the time of all passes

  // Bytes read, by kind. What is in RAM already is not read.
  uint64_t spine_bytes = 0;
  uint64_t expert_bytes = 0;
  uint64_t embedding_bytes = 0;
  uint64_t head_bytes = 0;
  uint64_t context_bytes = 0;  // of the latent cache
  uint64_t network_bytes = 0;  // of all these, what came from the hub because it was missing
  // For which the disk (the busiest, if the model lies on several) had at least one read under way.
  double disk_seconds = 0;

  double pass_seconds() const {
    double sum = 0;
    for (const double s : seconds) sum += s;
    return sum;
  }
  double phase_seconds(Phase phase) const { return seconds[static_cast<size_t>(phase)]; }
  double wait_seconds() const {
    return phase_seconds(Phase::kSpineWait) + phase_seconds(Phase::kExpertWait) +
           phase_seconds(Phase::kContextWait);
  }
  uint64_t bytes_read() const {
    return spine_bytes + expert_bytes + embedding_bytes + head_bytes + context_bytes;
  }
};

EngineCounters operator-(const EngineCounters& later, const EngineCounters& earlier);

}  // namespace deltafin
