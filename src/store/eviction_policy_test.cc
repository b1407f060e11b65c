#include "store/eviction_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>

#include "store/cache_simulation.h"

namespace deltafin {
namespace {

constexpr ExpertShape kShape{4, 8};

std::vector<int32_t> Picks(std::initializer_list<int32_t> ids) { return ids; }

TEST(LruPolicy, GivesUpWhatWasOfferedFirst) {
  const auto policy = MakeLruPolicy();
  EXPECT_FALSE(policy->Victim());
  for (ExpertKey key : {3, 1, 2}) policy->Offer(key);
  EXPECT_EQ(policy->Victim(), 3);
  policy->Withdraw(3);
  policy->Offer(3);
  EXPECT_EQ(policy->Victim(), 1);
}

TEST(LayerLruPolicy, TakesFromTheLayerThatHoldsTheMost) {
  const auto policy = MakeLayerLruPolicy(kShape);
  EXPECT_FALSE(policy->Victim());
  policy->OnPass(1, {});
  for (ExpertKey key : {kShape.Key(0, 1), kShape.Key(2, 5), kShape.Key(2, 3), kShape.Key(1, 0)}) {
    policy->Offer(key);
  }
  EXPECT_EQ(policy->Victim(), kShape.Key(2, 5));
  policy->Withdraw(kShape.Key(2, 5));
  EXPECT_EQ(policy->Victim(), kShape.Key(1, 0));  // the current layer in a tie
}

TEST(FrequencyPolicy, CountsUsesAndForgets) {
  const auto policy = MakeFrequencyPolicy(kShape);
  for (int i = 0; i < 2; ++i) policy->OnPass(1, Picks({1}));
  policy->OnPass(1, Picks({2}));
  policy->Offer(kShape.Key(1, 1));
  policy->Offer(kShape.Key(1, 2));
  EXPECT_EQ(policy->Victim(), kShape.Key(1, 2));
  // After many half-lives two old uses are worth less than one new one.
  for (int i = 0; i < 3 * 128; ++i) policy->OnPass(1, {});
  policy->OnPass(1, Picks({2}));
  EXPECT_EQ(policy->Victim(), kShape.Key(1, 1));
}

TEST(NextUsePolicy, KeepsWhatIsUsedOften) {
  ExpertHeat heat(kShape);
  const auto policy = MakeNextUsePolicy(heat);
  EXPECT_FALSE(policy->Victim());
  for (int i = 0; i < 20; ++i) policy->OnPass(1, Picks({1}));
  policy->OnPass(1, Picks({2}));
  policy->Offer(kShape.Key(1, 1));
  policy->Offer(kShape.Key(1, 2));
  policy->Offer(kShape.Key(1, 3));  // never used
  EXPECT_EQ(policy->Victim(), kShape.Key(1, 3));
  policy->Withdraw(kShape.Key(1, 3));
  EXPECT_EQ(policy->Victim(), kShape.Key(1, 2));
}

// Of two that are equally likely, the one whose layer has just run is needed later.
TEST(NextUsePolicy, KnowsWhoseTurnIsNext) {
  ExpertHeat heat(kShape);
  const auto policy = MakeNextUsePolicy(heat);
  for (int i = 0; i < 5; ++i) {
    for (int64_t layer = 0; layer < 4; ++layer) policy->OnPass(layer, Picks({6}));
  }
  for (int64_t layer = 0; layer < 4; ++layer) policy->Offer(kShape.Key(layer, 6));
  for (int64_t layer = 0; layer < 4; ++layer) {
    policy->OnPass(layer, Picks({6}));
    EXPECT_EQ(policy->Victim(), kShape.Key(layer, 6));
  }
}

TEST(NextUsePolicy, StartsFromLearnedHeat) {
  ExpertHeat heat(kShape);
  for (int i = 0; i < 50; ++i) heat.OnPass(2, i % 2 == 0 ? Picks({1, 4}) : Picks({4}));
  const auto policy = MakeNextUsePolicy(heat);
  policy->Offer(kShape.Key(2, 4));
  policy->Offer(kShape.Key(2, 1));
  EXPECT_EQ(policy->Victim(), kShape.Key(2, 1));
}

// Whatever is offered and withdrawn, the victim is one of those on offer.
TEST(EvictionPolicies, VictimsAreOnOffer) {
  ExpertHeat heat(kShape);
  const std::function<std::unique_ptr<EvictionPolicy>()> makers[] = {
      MakeLruPolicy, [] { return MakeLayerLruPolicy(kShape); },
      [] { return MakeFrequencyPolicy(kShape); }, [&] { return MakeNextUsePolicy(heat); }};
  for (const auto& make : makers) {
    const auto policy = make();
    std::mt19937 random(3);
    auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    std::set<ExpertKey> offered;
    for (int step = 0; step < 5000; ++step) {
      if (below(3) == 0) policy->OnPass(below(4), Picks({static_cast<int32_t>(below(8))}));
      const ExpertKey key = below(kShape.num_keys());
      if (offered.contains(key)) {
        policy->Withdraw(key);
        offered.erase(key);
      } else {
        policy->Offer(key);
        offered.insert(key);
      }
      const auto victim = policy->Victim();
      ASSERT_EQ(victim.has_value(), !offered.empty());
      if (victim) {
        EXPECT_TRUE(offered.contains(*victim));
      }
    }
  }
}

// A working set that is larger than the slots, over and over: what makes a global LRU useless and
// is K3's normal state (1,472 experts a token).
TEST(NextUsePolicy, DoesNotThrash) {
  ExpertHeat heat(kShape);
  const auto next_use = MakeNextUsePolicy(heat);
  const auto lru = MakeLruPolicy();
  CacheSimulation with_next_use(kShape, 8, *next_use);
  CacheSimulation with_lru(kShape, 8, *lru);
  for (int pass = 0; pass < 50; ++pass) {
    for (int64_t layer = 0; layer < 4; ++layer) {
      with_next_use.Pass(layer, Picks({1, 2, 3}));
      with_lru.Pass(layer, Picks({1, 2, 3}));
    }
  }
  EXPECT_EQ(with_lru.num_hits(), 0u);
  // 3 of the 8 slots must serve the layer at hand; the other 5 can keep 5 of 12.
  EXPECT_GE(with_next_use.num_hits(), 49u * 5);
}

}  // namespace
}  // namespace deltafin
