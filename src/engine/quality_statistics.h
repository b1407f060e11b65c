// The figures of a quality report, one prediction after the other. Double precision.
#pragma once

#include <cstdint>
#include <span>

#include "deltafin/quality.h"
#include "deltafin/sampling.h"

namespace deltafin {

// A row of logits as a distribution.
struct LogitsRow {
  explicit LogitsRow(std::span<const float> row);

  double Logprob(TokenId id) const { return static_cast<double>(logits[id]) - log_sum; }

  std::span<const float> logits;
  double log_sum = 0;     // ln of the sum of e^logit
  TokenId likeliest = 0;  // the lowest id on ties
};

// How well tokens were predicted.
class PredictionScore {
 public:
  // `next` is the token that came, `bytes` long.
  void Add(const LogitsRow& row, TokenId next, size_t bytes);
  void Fill(QualityReport* report) const;

 private:
  int64_t count_ = 0;
  int64_t right_ = 0;
  uint64_t bytes_ = 0;
  double nll_ = 0;
};

// How far predictions are from a reference.
class PredictionDistance {
 public:
  // Distributions after token `position`. Both rows have the same length.
  void Add(int64_t position, const LogitsRow& row, const LogitsRow& reference, TokenId next);
  // The reference is the log probability of the token that came and of some others, the likeliest
  // first; at least one in all.
  void AddPartial(int64_t position, const LogitsRow& row, const PositionLogprobs& reference,
                  TokenId next);
  void Fill(QualityComparison* comparison) const;

 private:
  void AddOne(int64_t position, double nll, double reference_nll, double kl, double shift,
              bool same_likeliest);

  int64_t count_ = 0;
  int64_t same_likeliest_ = 0;
  bool partial_ = false;
  double reference_nll_ = 0;
  double difference_ = 0;
  double difference_squares_ = 0;
  double kl_ = 0;
  double max_kl_ = -1;
  int64_t max_kl_position_ = 0;
  double max_shift_ = -1;
  int64_t max_shift_position_ = 0;
};

}  // namespace deltafin
