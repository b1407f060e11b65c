#include "engine/draft_policy.h"

#include <algorithm>

#include "base/check.h"

namespace deltafin {
namespace {

// What trying may cost: half a pass at once, then this part of the time spent. Over 60 tokens and
// more that is under 2 % of it, whatever drafts and costs turn out to be.
constexpr double kFirstAllowance = 0.5;
constexpr double kAllowance = 0.008;
// Savings that may be spent again, in passes: a good passage does not pay for a long bad one.
constexpr double kMaxBalance = 8;
// A draft must promise this much more than none.
constexpr double kMargin = 1.03;
// Costs that were measured are forgotten slowly, towards what is assumed: one that was disturbed is
// tried again.
constexpr double kForget = 1.0 / 64;
constexpr double kPriorWeight = 4;
// A guess that rests on a single token is tried only where a further position costs next to
// nothing: most of those in a text without repetitions are of that kind, and wrong.
constexpr double kPriorAcceptance[] = {0.1, 0.35, 0.5, 0.65, 0.8, 0.9};
// Older trials count less: text changes.
constexpr double kDecay = 0.97;
// Drafts in a row, after which one pass without says what such a pass costs now.
constexpr int kMaxInARow = 32;

}  // namespace

// 1, 2, 3, 4 - 7, 8 - 15, 16 and more tokens of match.
int DraftPolicy::ClassOf(int64_t match) {
  if (match <= 3) return static_cast<int>(std::max<int64_t>(match, 1)) - 1;
  return match < 8 ? 3 : match < 16 ? 4 : 5;
}

double DraftPolicy::Acceptance(int64_t match) const {
  const int at = ClassOf(match);
  const Class& c = classes_[at];
  return (c.right + kPriorWeight * kPriorAcceptance[at]) / (c.tried + kPriorWeight);
}

double DraftPolicy::RelativeCost(int64_t drafted) const {
  int64_t at = drafted;  // measured: this length, or the nearest shorter one
  while (at > 0 && slopes_[at].measured == 0) --at;
  return 1 + slopes_[at].value * static_cast<double>(at) +
         kSlope * static_cast<double>(drafted - at);
}

// The same for a length that might prove to be dear.
double DraftPolicy::CautiousCost(int64_t drafted) const {
  const double cost = RelativeCost(drafted);
  if (slopes_[drafted].measured >= 2) return cost;
  return std::max(cost, 1 + kCautiousSlope * static_cast<double>(drafted));
}

int64_t DraftPolicy::Choose(int64_t match, int64_t available) {
  if (plain_seconds_ <= 0 || match <= 0 || drafts_in_a_row_ >= kMaxInARow) return 0;
  const double p = Acceptance(match);
  int64_t best = 0;
  double best_rate = kMargin;
  double expected = 1;  // tokens of the pass
  double all_right = 1;
  for (int64_t k = 1; k <= std::min(available, kMaxDraftTokens); ++k) {
    all_right *= p;
    expected += all_right;
    const double cost = RelativeCost(k);
    // Even if all guesses are wrong.
    const bool affordable = balance_ >= (CautiousCost(k) - 1) * plain_seconds_;
    if (affordable && expected / cost > best_rate) {
      best = k;
      best_rate = expected / cost;
    }
  }
  return best;
}

void DraftPolicy::RecordPlain(double seconds) {
  recent_[num_plain_ % kWindow] = seconds;
  ++num_plain_;
  // The median: a pass that something else disturbed says nothing.
  std::array<double, kWindow> sorted = recent_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(num_plain_, kWindow));
  std::sort(sorted.begin(), end);
  plain_seconds_ = sorted[static_cast<size_t>(end - sorted.begin()) / 2];

  if (num_plain_ == 1) balance_ = kFirstAllowance * seconds;
  balance_ = std::min(balance_ + kAllowance * plain_seconds_, kMaxBalance * plain_seconds_);
  for (Slope& slope : slopes_) slope.value += (kSlope - slope.value) * kForget;
  drafts_in_a_row_ = 0;
}

void DraftPolicy::RecordDraft(int64_t match, int64_t drafted, int64_t accepted, double seconds) {
  DF_CHECK(drafted >= 1 && drafted <= kMaxDraftTokens && accepted <= drafted);
  ++drafts_in_a_row_;
  Class& c = classes_[ClassOf(match)];
  c.right = c.right * kDecay + static_cast<double>(accepted);
  c.tried = c.tried * kDecay + static_cast<double>(std::min(accepted + 1, drafted));
  if (plain_seconds_ <= 0) return;  // a caller that drafts without asking
  // No pass does more work than its positions one by one: what is over was a disturbance.
  seconds = std::min(seconds, static_cast<double>(1 + drafted) * plain_seconds_);
  Slope& slope = slopes_[drafted];
  const double measured =
      std::max(0.0, seconds / plain_seconds_ - 1) / static_cast<double>(drafted);
  slope.measured = std::min(slope.measured + 1, 7);
  slope.value += (measured - slope.value) / (slope.measured + 1);  // the assumption counts as one
  balance_ += static_cast<double>(1 + accepted) * plain_seconds_ - seconds;
  balance_ = std::min(balance_, kMaxBalance * plain_seconds_);
}

}  // namespace deltafin
