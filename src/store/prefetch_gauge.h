// Whether reading a layer's experts ahead pays.
#pragma once

#include <cstdint>

namespace deltafin {

// What became of the reads that one hint started, when its layer was asked for.
struct PrefetchOutcome {
  int64_t right_ready = 0;    // asked for, and in RAM already
  int64_t right_late = 0;     // asked for, still being read
  int64_t wrong_done = 0;     // not asked for, read in vain
  int64_t wrong_late = 0;     // not asked for, and the disk is still at it
  int64_t wrong_dropped = 0;  // not asked for, and taken back before it began
  int64_t replaced = 0;       // of the wrong ones that were read: took another expert's slot
};

// Weighs, for one layer and in units of one expert's read time, what guesses saved against what
// they cost. Switches the layer off when the cost is the larger, and tries again after a while. Not
// thread-safe.
class PrefetchGauge {
 public:
  // A guess is worth making.
  bool on() const { return rest_ == 0; }
  // `victim_use` is the chance that a slot's content is used in one pass: what it costs to have put
  // a wrong guess in its place.
  void OnOutcome(const PrefetchOutcome& outcome, double victim_use);
  // The layer was asked for without a hint.
  void OnNoHint();

 private:
  static constexpr int64_t kTrial = 8;       // outcomes before it decides
  static constexpr int64_t kFirstRest = 64;  // requests without hints; doubles each time
  static constexpr int64_t kLongestRest = 1024;
  static constexpr double kKept = 0.9;  // of the past, at each outcome

  double saved_ = 0;
  double lost_ = 0;
  int64_t outcomes_ = 0;  // since it was last switched on
  int64_t rest_ = 0;      // requests until it is switched on again
  int64_t next_rest_ = kFirstRest;
};

}  // namespace deltafin
