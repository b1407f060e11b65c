#include "store/prefetch_gauge.h"

#include <algorithm>

namespace deltafin {

void PrefetchGauge::OnOutcome(const PrefetchOutcome& outcome, double victim_use) {
  // A read that is under way when its layer is asked for has done half its work on average: a right
  // one saved that half, a wrong one holds up what is really needed for the other.
  const double saved =
      static_cast<double>(outcome.right_ready) + 0.5 * static_cast<double>(outcome.right_late);
  const double lost = 0.5 * static_cast<double>(outcome.wrong_late) +
                      victim_use * static_cast<double>(outcome.replaced);
  saved_ = kKept * saved_ + saved;
  lost_ = kKept * lost_ + lost;
  ++outcomes_;
  if (outcomes_ < kTrial) return;
  if (saved_ >= lost_) {
    if (outcomes_ >= 2 * kTrial) next_rest_ = kFirstRest;  // it has proved itself
    return;
  }
  rest_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, kLongestRest);
  saved_ = 0;
  lost_ = 0;
  outcomes_ = 0;
}

void PrefetchGauge::OnNoHint() {
  if (rest_ > 0) --rest_;
}

}  // namespace deltafin
