// Chooses tokens. docs/decoding.md defines the order of operations.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "deltafin/sampling.h"

namespace deltafin {

// A number in [0, 1) that depends on nothing but the seed and the position: a multiple of 2^-53.
double PositionUniform(uint64_t seed, uint64_t position);

// One thread. Keeps scratch memory, but no state: what Choose returns depends on its arguments.
class Sampler {
 public:
  // Throws Error(kInvalidArgument) naming the option.
  Sampler(const SamplingOptions& options, int64_t vocab_size);

  // The token that follows `text`, given its logits [vocab_size]. text[first_generated..] is what
  // presence and frequency penalties count.
  TokenId Choose(std::span<const float> logits, std::span<const TokenId> text,
                 size_t first_generated) {
    return Choose(logits, text, first_generated, nullptr);
  }
  // The same among the tokens that `allows` (unless null): a choice that it refuses is made again
  // as if the refused tokens had logits of minus infinity. Throws Error(kInvalidArgument) when it
  // refuses every token.
  using Allows = std::function<bool(TokenId)>;
  TokenId Choose(std::span<const float> logits, std::span<const TokenId> text,
                 size_t first_generated, const Allows& allows);

 private:
  TokenId HighestAllowed(const Allows& allows);
  TokenId DrawAllowed(const Allows& allows, uint64_t position);
  void RefuseAllBut(const Allows& allows);
  void ComputeWeights();
  void StartOrder();
  bool ChangesLogits() const;
  void AdjustLogits(std::span<const float> logits, std::span<const TokenId> text,
                    size_t first_generated);
  void SortUpTo(size_t count);
  double SumOfFirst(size_t count);
  size_t NumKept();
  TokenId Draw(size_t kept, double uniform);

  SamplingOptions options_;
  size_t vocab_size_;
  std::vector<double> logits_;   // after bias and penalties
  std::vector<double> weights_;  // by id; the highest is 1
  std::vector<int32_t> counts_;  // by id, for penalties
  std::vector<TokenId> order_;   // ids, the first sorted_ of them in descending weight
  size_t sorted_ = 0;
};

// log softmax of the logits: `chosen`'s and the `top` highest.
PositionLogprobs LogprobsOf(std::span<const float> logits, TokenId chosen, int64_t top);

}  // namespace deltafin
