#include "engine/quality_statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/check.h"

namespace deltafin {

LogitsRow::LogitsRow(std::span<const float> row) : logits(row) {
  DF_CHECK(!row.empty());
  const auto top = std::max_element(row.begin(), row.end());
  likeliest = static_cast<TokenId>(top - row.begin());
  const double highest = *top;
  double sum = 0;
  for (float logit : row) sum += std::exp(logit - highest);
  log_sum = highest + std::log(sum);
}

void PredictionScore::Add(const LogitsRow& row, TokenId next, size_t bytes) {
  ++count_;
  right_ += row.likeliest == next;
  bytes_ += bytes;
  nll_ -= row.Logprob(next);
}

void PredictionScore::Fill(QualityReport* report) const {
  report->predictions = count_;
  if (count_ == 0) return;
  const auto count = static_cast<double>(count_);
  report->mean_nll = nll_ / count;
  report->perplexity = std::exp(report->mean_nll);
  report->top1_accuracy = static_cast<double>(right_) / count;
  if (bytes_ > 0) report->bits_per_byte = nll_ / std::numbers::ln2 / static_cast<double>(bytes_);
}

void PredictionDistance::AddOne(int64_t position, double nll, double reference_nll, double kl,
                                double shift, bool same_likeliest) {
  ++count_;
  same_likeliest_ += same_likeliest;
  reference_nll_ += reference_nll;
  difference_ += nll - reference_nll;
  difference_squares_ += (nll - reference_nll) * (nll - reference_nll);
  kl = std::max(kl, 0.0);  // equal distributions may round to less
  kl_ += kl;
  if (kl > max_kl_) {
    max_kl_ = kl;
    max_kl_position_ = position;
  }
  if (shift > max_shift_) {
    max_shift_ = shift;
    max_shift_position_ = position;
  }
}

void PredictionDistance::Add(int64_t position, const LogitsRow& row, const LogitsRow& reference,
                             TokenId next) {
  DF_CHECK(row.logits.size() == reference.logits.size());
  double kl = 0;
  double shift = 0;
  for (size_t i = 0; i < row.logits.size(); ++i) {
    const double p = reference.logits[i] - reference.log_sum;
    const double q = row.logits[i] - row.log_sum;
    kl += std::exp(p) * (p - q);
    shift = std::max(shift, std::abs(static_cast<double>(row.logits[i]) -
                                     static_cast<double>(reference.logits[i])));
  }
  AddOne(position, -row.Logprob(next), -reference.Logprob(next), kl, shift,
         row.likeliest == reference.likeliest);
}

void PredictionDistance::AddPartial(int64_t position, const LogitsRow& row,
                                    const PositionLogprobs& reference, TokenId next) {
  partial_ = true;
  std::vector<TokenLogprob> known = reference.top;
  const bool has_next = std::any_of(known.begin(), known.end(),
                                    [&](const TokenLogprob& entry) { return entry.id == next; });
  if (!has_next) known.push_back({next, reference.chosen});
  double kl = 0;
  double shift = 0;
  double p_rest = 1;  // of all tokens that the reference says nothing about
  double q_rest = 1;
  for (const TokenLogprob& entry : known) {
    const double p = std::exp(entry.logprob);
    const double q = row.Logprob(entry.id);
    kl += p * (entry.logprob - q);
    shift = std::max(shift, std::abs(q - entry.logprob));
    p_rest -= p;
    q_rest -= std::exp(q);
  }
  // Rounded log probabilities may leave nothing, or less.
  constexpr double kLeast = 1e-9;
  if (p_rest > kLeast) kl += p_rest * std::log(p_rest / std::max(q_rest, kLeast));
  const auto likeliest = std::max_element(
      known.begin(), known.end(),
      [](const TokenLogprob& a, const TokenLogprob& b) { return a.logprob < b.logprob; });
  AddOne(position, -row.Logprob(next), -reference.chosen, kl, shift,
         row.likeliest == likeliest->id);
}

void PredictionDistance::Fill(QualityComparison* comparison) const {
  comparison->predictions = count_;
  comparison->partial = partial_;
  if (count_ == 0) return;
  const auto count = static_cast<double>(count_);
  comparison->mean_nll = reference_nll_ / count;
  comparison->perplexity = std::exp(comparison->mean_nll);
  const double mean = difference_ / count;
  comparison->nll_difference = mean;
  if (count_ > 1) {
    const double variance = (difference_squares_ - count * mean * mean) / (count - 1);
    comparison->nll_difference_error = std::sqrt(std::max(variance, 0.0) / count);
  }
  comparison->mean_kl = kl_ / count;
  comparison->max_kl = max_kl_;
  comparison->max_kl_position = max_kl_position_;
  comparison->top1_agreement = static_cast<double>(same_likeliest_) / count;
  comparison->max_shift = max_shift_;
  comparison->max_shift_position = max_shift_position_;
}

}  // namespace deltafin
