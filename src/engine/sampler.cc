#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/format.h"
#include "deltafin/error.h"
#include "engine/exp_of_negative.h"

namespace deltafin {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

void Require(bool good, const char* name, const char* expected, double got) {
  if (good) return;
  throw Error(ErrorCode::kInvalidArgument, format("{}: expected {}, got {}", name, expected, got));
}

void Check(const SamplingOptions& o, int64_t vocab_size) {
  // Comparisons that a NaN fails. Below 0.001 a difference of logits that rounding alone can make
  // would decide: that is greedy decoding, which has its own name.
  Require(o.temperature == 0 || (o.temperature >= 0.001 && o.temperature <= 100), "temperature",
          "0 (greedy) or 0.001 to 100", o.temperature);
  Require(o.top_k >= 0, "top-k", "at least 0 (all tokens)", static_cast<double>(o.top_k));
  Require(o.top_p > 0 && o.top_p <= 1, "top-p", "more than 0 and at most 1", o.top_p);
  Require(o.min_p >= 0 && o.min_p < 1, "min-p", "at least 0 and less than 1", o.min_p);
  // A logit that is divided by next to nothing is beyond all numbers.
  Require(o.repetition_penalty >= 0.01 && o.repetition_penalty <= 100, "repetition penalty",
          "0.01 to 100", o.repetition_penalty);
  Require(std::abs(o.presence_penalty) <= 100, "presence penalty", "-100 to 100",
          o.presence_penalty);
  Require(std::abs(o.frequency_penalty) <= 100, "frequency penalty", "-100 to 100",
          o.frequency_penalty);
  std::vector<TokenId> ids;
  for (const auto& [id, bias] : o.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("logit bias: expected token ids 0 to {}, got {}", vocab_size - 1, id));
    }
    Require(std::abs(bias) <= 100, "logit bias", "values from -100 to 100", bias);
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("logit bias: expected each token id once, got {} again", *twice));
  }
}

Error NothingAllowed() {
  return {ErrorCode::kInvalidArgument, "constraint: it allows no token to come next"};
}

}  // namespace

double PositionUniform(uint64_t seed, uint64_t position) {
  const uint64_t bits = Mix(Mix(seed) + (position + 1) * 0x9e3779b97f4a7c15ull);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Sampler::Sampler(const SamplingOptions& options, int64_t vocab_size)
    : options_(options), vocab_size_(static_cast<size_t>(vocab_size)) {
  Check(options, vocab_size);
}

bool Sampler::ChangesLogits() const {
  return !options_.logit_bias.empty() || options_.repetition_penalty != 1 ||
         options_.presence_penalty != 0 || options_.frequency_penalty != 0;
}

// Repetition penalty, then presence and frequency, then bias.
void Sampler::AdjustLogits(std::span<const float> logits, std::span<const TokenId> text,
                           size_t first_generated) {
  logits_.assign(logits.begin(), logits.end());
  if (!ChangesLogits()) return;
  if (options_.repetition_penalty != 1) {
    counts_.assign(vocab_size_, 0);
    for (TokenId id : text) {
      if (counts_[id]++ > 0) continue;
      double& logit = logits_[id];
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    }
  }
  if (options_.presence_penalty != 0 || options_.frequency_penalty != 0) {
    counts_.assign(vocab_size_, 0);
    for (TokenId id : text.subspan(first_generated)) ++counts_[id];
    for (size_t id = 0; id < vocab_size_; ++id) {
      if (counts_[id] == 0) continue;
      logits_[id] -= options_.presence_penalty + options_.frequency_penalty * counts_[id];
    }
  }
  for (const auto& [id, bias] : options_.logit_bias) logits_[id] += bias;
}

// Makes order_[0, count) final. Most draws and filters end among the first few tokens.
void Sampler::SortUpTo(size_t count) {
  if (count <= sorted_) return;
  const auto better = [this](TokenId a, TokenId b) {
    return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
  };
  const size_t end = std::min(vocab_size_, std::max({count, 4 * sorted_, size_t{64}}));
  std::partial_sort(order_.begin() + static_cast<std::ptrdiff_t>(sorted_),
                    order_.begin() + static_cast<std::ptrdiff_t>(end), order_.end(), better);
  sorted_ = end;
}

// The sum of the `count` largest weights: of all in order of id, of fewer in descending order.
double Sampler::SumOfFirst(size_t count) {
  double sum = 0;
  if (count == vocab_size_) {
    for (double weight : weights_) sum += weight;
    return sum;
  }
  SortUpTo(count);
  for (size_t i = 0; i < count; ++i) sum += weights_[order_[i]];
  return sum;
}

// How many of the most likely tokens stay: top-k, of these top-p, of these min-p.
size_t Sampler::NumKept() {
  size_t kept = vocab_size_;
  if (options_.top_k > 0) kept = std::min(kept, static_cast<size_t>(options_.top_k));
  if (options_.top_p < 1) {
    const double wanted = options_.top_p * SumOfFirst(kept);
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) {
      SortUpTo(i + 1);
      sum += weights_[order_[i]];
      if (sum >= wanted) kept = i + 1;
    }
  }
  if (options_.min_p > 0) {
    for (size_t i = 0; i < kept; ++i) {
      SortUpTo(i + 1);
      if (weights_[order_[i]] < options_.min_p) kept = i;  // the first has weight 1
    }
  }
  return kept;
}

// The token where the running sum of weights passes `uniform` of the whole.
TokenId Sampler::Draw(size_t kept, double uniform) {
  const double target = uniform * SumOfFirst(kept);
  double sum = 0;
  TokenId last = 0;
  for (size_t i = 0; i < kept; ++i) {
    SortUpTo(i + 1);
    if (weights_[order_[i]] == 0) break;
    last = order_[i];
    sum += weights_[last];
    if (sum > target) break;
  }
  return last;  // the least likely one where rounding left the sum short
}

void Sampler::ComputeWeights() {
  const double highest = *std::max_element(logits_.begin(), logits_.end());
  if (highest == -std::numeric_limits<double>::infinity()) throw NothingAllowed();
  weights_.resize(vocab_size_);
  for (size_t id = 0; id < vocab_size_; ++id) {
    weights_[id] = (logits_[id] - highest) / options_.temperature;
  }
  ExpOfNegatives(weights_);
  StartOrder();
}

void Sampler::StartOrder() {
  order_.resize(vocab_size_);
  std::iota(order_.begin(), order_.end(), 0);
  sorted_ = 0;
}

TokenId Sampler::HighestAllowed(const Allows& allows) {
  const auto highest = std::max_element(logits_.begin(), logits_.end());  // lowest id on ties
  const auto first = static_cast<TokenId>(highest - logits_.begin());
  if (!allows || allows(first)) return first;
  StartOrder();
  for (size_t i = 1; i < vocab_size_; ++i) {
    SortUpTo(i + 1);
    if (allows(order_[i])) return order_[i];
  }
  throw NothingAllowed();
}

// A fresh random number for every choice that is refused: with the old one, what is left of it
// after the refusal would favour the tokens at the front.
TokenId Sampler::DrawAllowed(const Allows& allows, uint64_t position) {
  constexpr uint64_t kChoices = 16;  // then every token is asked about, once
  constexpr uint64_t kSeedStep = 0xd1342543de82ef95ull;
  for (uint64_t choice = 0;; ++choice) {
    ComputeWeights();
    const TokenId token =
        Draw(NumKept(), PositionUniform(options_.seed + choice * kSeedStep, position));
    if (!allows || choice == kChoices || allows(token)) return token;
    logits_[token] = -std::numeric_limits<double>::infinity();
    if (choice + 1 == kChoices) RefuseAllBut(allows);
  }
}

void Sampler::RefuseAllBut(const Allows& allows) {
  StartOrder();
  SortUpTo(vocab_size_);
  for (TokenId id : order_) {
    double& logit = logits_[id];
    if (std::isfinite(logit) && !allows(id)) logit = -std::numeric_limits<double>::infinity();
  }
}

TokenId Sampler::Choose(std::span<const float> logits, std::span<const TokenId> text,
                        size_t first_generated, const Allows& allows) {
  if (options_.temperature == 0 && !ChangesLogits() && !allows) {
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  AdjustLogits(logits, text, first_generated);
  return options_.temperature == 0 ? HighestAllowed(allows) : DrawAllowed(allows, text.size());
}

PositionLogprobs LogprobsOf(std::span<const float> logits, TokenId chosen, int64_t top) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  weights.reserve(logits.size());
  for (float logit : logits) weights.push_back(logit - highest);
  ExpOfNegatives(weights);
  double sum = 0;
  for (double weight : weights) sum += weight;
  const double log_sum = highest + std::log(sum);
  PositionLogprobs result;
  result.chosen = logits[chosen] - log_sum;

  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::min(static_cast<std::ptrdiff_t>(top), std::ssize(order));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    result.top.push_back({order[i], logits[order[i]] - log_sum});
  }
  return result;
}

}  // namespace deltafin
