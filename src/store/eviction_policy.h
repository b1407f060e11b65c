// Which expert to give up when a slot is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "store/expert_heat.h"

namespace deltafin {

// Ranks the experts that lie in slots and are not in use. Not thread-safe.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // A pass asks for `experts` (distinct) of `layer`, whether they are in slots or not. Comes before
  // the evictions that it causes.
  virtual void OnPass(int64_t layer, std::span<const int32_t> experts) = 0;
  // `key` may be given up from now on: it has just been used, or read.
  virtual void Offer(ExpertKey key) = 0;
  // It may no more: it is in use, or gone. It was on offer.
  virtual void Withdraw(ExpertKey key) = 0;
  // The one on offer to give up next; it stays on offer. Empty when none is.
  virtual std::optional<ExpertKey> Victim() = 0;
};

// The one that the store uses: the expert whose next use is expected to be the furthest away. An
// expert's chance to be picked by one pass is estimated from its uses in the last few passes and in
// the last hundreds (`heat`, which learns with every pass and may begin with what other runs
// learned); its layer's next turn is known. `heat` must outlive the policy.
std::unique_ptr<EvictionPolicy> MakeNextUsePolicy(ExpertHeat& heat);

// For comparison (docs/experts.md): the least recently used; the least recently used of the layer
// that has the most on offer; the one with the fewest uses, older ones counting less.
std::unique_ptr<EvictionPolicy> MakeLruPolicy();
std::unique_ptr<EvictionPolicy> MakeLayerLruPolicy(const ExpertShape& shape);
std::unique_ptr<EvictionPolicy> MakeFrequencyPolicy(const ExpertShape& shape);

}  // namespace deltafin
