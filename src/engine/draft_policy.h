// How long a draft pays: measured acceptance against the measured cost of extra positions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace deltafin {

// Drafts of more tokens are not tried.
inline constexpr int64_t kMaxDraftTokens = 8;

// Pure arithmetic on what it is told; the clock is the caller's. Not thread-safe.
class DraftPolicy {
 public:
  // Of a draft that rests on `match` tokens and has `available`: how many to try, 0 for none.
  int64_t Choose(int64_t match, int64_t available);

  // A pass without draft took `seconds`.
  void RecordPlain(double seconds);
  // A pass with `drafted` guesses, of which the first `accepted` were right, took `seconds`, taking
  // back included.
  void RecordDraft(int64_t match, int64_t drafted, int64_t accepted, double seconds);

  // Of a pass with `drafted` guesses, in passes without.
  double RelativeCost(int64_t drafted) const;
  // Probability that one more guess is right.
  double Acceptance(int64_t match) const;

 private:
  // The cost of a guess before it was measured: low, so that it is tried; and what must be at hand
  // for trying.
  static constexpr double kSlope = 0.15;
  static constexpr double kCautiousSlope = 0.5;
  static constexpr int kNumClasses = 6;
  static constexpr size_t kWindow = 9;
  struct Class {
    double right = 0;
    double tried = 0;
  };
  struct Slope {
    double value = kSlope;  // extra passes' worth per guess
    int measured = 0;
  };
  static int ClassOf(int64_t match);
  double CautiousCost(int64_t drafted) const;

  std::array<double, kWindow> recent_ = {};
  size_t num_plain_ = 0;
  double plain_seconds_ = 0;  // of a pass without draft, as measured lately; 0 before the first
  std::array<Class, kNumClasses> classes_ = {};
  std::array<Slope, kMaxDraftTokens + 1> slopes_ = {};
  int drafts_in_a_row_ = 0;
  // Seconds that drafts have saved, plus the allowance: what may be lost on trying.
  double balance_ = 0;
};

}  // namespace deltafin
