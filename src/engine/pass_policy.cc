#include "engine/pass_policy.h"

#include <algorithm>

namespace deltafin {

PassPolicy::PassPolicy(int64_t most_positions, bool weights_in_ram)
    : most_positions_(most_positions),
      beside_answers_(weights_in_ram ? std::min(most_positions, kSmallPiece) : most_positions) {}

int64_t PassPolicy::PromptPositions(int64_t answers) const {
  if (answers == 0) return most_positions_;
  return owed_seconds_ > 0 ? 0 : beside_answers_;
}

void PassPolicy::Record(int64_t answers, int64_t prompt_positions, double seconds) {
  constexpr double kNewShare = 0.25;  // of the running mean
  if (answers == 0) {
    owed_seconds_ = 0;  // nobody waited
    return;
  }
  if (prompt_positions > 0) {
    owed_seconds_ += std::max(0.0, seconds - 2 * answer_seconds_);  // answers had their part too
    return;
  }
  owed_seconds_ = std::max(0.0, owed_seconds_ - seconds);
  answer_seconds_ =
      answer_seconds_ == 0 ? seconds : answer_seconds_ + kNewShare * (seconds - answer_seconds_);
}

}  // namespace deltafin
