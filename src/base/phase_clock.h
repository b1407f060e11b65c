// Adds up the time that the passes spend in each phase.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "deltafin/engine_counters.h"

namespace deltafin {

// One thread enters and leaves phases (PhaseScope); others may read the sums meanwhile. A phase
// that is entered inside another one suspends it.
class PhaseClock {
 public:
  // Outside of all phases, where time does not count.
  static constexpr int kNone = -1;

  // Charges the time since the last call to the phase that ends or is suspended; returns it.
  int Enter(int phase) noexcept;
  void CountPass(int64_t positions) noexcept {
    passes_.fetch_add(1, std::memory_order_relaxed);
    positions_.fetch_add(static_cast<uint64_t>(positions), std::memory_order_relaxed);
  }

  // Fills passes, positions and seconds. Thread-safe.
  void AddTo(EngineCounters& counters) const;

 private:
  std::array<std::atomic<int64_t>, kNumPhases> nanoseconds_ = {};
  std::atomic<uint64_t> passes_ = 0;
  std::atomic<uint64_t> positions_ = 0;
  int current_ = kNone;
  int64_t since_ = 0;
};

// From here to the end of the block is `phase`. Without a clock it does nothing.
class PhaseScope {
 public:
  PhaseScope(PhaseClock* clock, Phase phase) noexcept
      : clock_(clock), outer_(clock == nullptr ? 0 : clock->Enter(static_cast<int>(phase))) {}
  ~PhaseScope() {
    if (clock_ != nullptr) clock_->Enter(outer_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  PhaseClock* const clock_;
  const int outer_;
};

}  // namespace deltafin
