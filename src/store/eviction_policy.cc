#include "store/eviction_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"

namespace deltafin {
namespace {

// Keys in the order in which they were offered.
class OfferQueue {
 public:
  void Add(ExpertKey key) {
    const bool added = where_.emplace(key, keys_.insert(keys_.end(), key)).second;
    DF_CHECK(added);
  }
  void Remove(ExpertKey key) {
    const auto at = where_.find(key);
    DF_CHECK(at != where_.end());
    keys_.erase(at->second);
    where_.erase(at);
  }
  size_t size() const { return keys_.size(); }
  ExpertKey oldest() const { return keys_.front(); }

 private:
  std::list<ExpertKey> keys_;
  std::unordered_map<ExpertKey, std::list<ExpertKey>::iterator> where_;
};

class LruPolicy final : public EvictionPolicy {
 public:
  void OnPass(int64_t, std::span<const int32_t>) override {}
  void Offer(ExpertKey key) override { queue_.Add(key); }
  void Withdraw(ExpertKey key) override { queue_.Remove(key); }
  std::optional<ExpertKey> Victim() override {
    if (queue_.size() == 0) return std::nullopt;
    return queue_.oldest();
  }

 private:
  OfferQueue queue_;
};

class LayerLruPolicy final : public EvictionPolicy {
 public:
  explicit LayerLruPolicy(const ExpertShape& shape)
      : shape_(shape), layers_(static_cast<size_t>(shape.num_layers)) {}

  void OnPass(int64_t layer, std::span<const int32_t>) override {
    current_ = static_cast<size_t>(layer);
  }
  void Offer(ExpertKey key) override { LayerOf(key).Add(key); }
  void Withdraw(ExpertKey key) override { LayerOf(key).Remove(key); }
  std::optional<ExpertKey> Victim() override {
    size_t most = current_;  // also wins ties: its next turn is the furthest away
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      if (layers_[layer].size() > layers_[most].size()) most = layer;
    }
    if (layers_[most].size() == 0) return std::nullopt;
    return layers_[most].oldest();
  }

 private:
  OfferQueue& LayerOf(ExpertKey key) { return layers_[static_cast<size_t>(shape_.Layer(key))]; }

  ExpertShape shape_;
  std::vector<OfferQueue> layers_;
  size_t current_ = 0;
};

// Uses count 2^(pass / half-life), so that nothing need be decayed; kept as log2 of the sum.
class FrequencyPolicy final : public EvictionPolicy {
 public:
  explicit FrequencyPolicy(const ExpertShape& shape)
      : shape_(shape),
        passes_(static_cast<size_t>(shape.num_layers)),
        log_uses_(static_cast<size_t>(shape.num_keys()), -std::numeric_limits<double>::infinity()) {
  }

  void OnPass(int64_t layer, std::span<const int32_t> experts) override {
    const double now =
        static_cast<double>(passes_[static_cast<size_t>(layer)]++) / ExpertHeat::kHalfLife;
    for (int32_t expert : experts) {
      const ExpertKey key = shape_.Key(layer, expert);
      double& log_uses = log_uses_[static_cast<size_t>(key)];
      const auto at = offered_.find({log_uses, key});
      const bool is_offered = at != offered_.end();
      if (is_offered) offered_.erase(at);
      log_uses = now + std::log2(1 + std::exp2(log_uses - now));
      if (is_offered) offered_.emplace(log_uses, key);
    }
  }
  void Offer(ExpertKey key) override {
    const bool added = offered_.emplace(log_uses_[static_cast<size_t>(key)], key).second;
    DF_CHECK(added);
  }
  void Withdraw(ExpertKey key) override {
    const size_t removed = offered_.erase({log_uses_[static_cast<size_t>(key)], key});
    DF_CHECK(removed == 1);
  }
  std::optional<ExpertKey> Victim() override {
    if (offered_.empty()) return std::nullopt;
    return offered_.begin()->second;
  }

 private:
  ExpertShape shape_;
  std::vector<int64_t> passes_;  // of each layer
  std::vector<double> log_uses_;
  std::set<std::pair<double, ExpertKey>> offered_;  // fewest uses first
};

class NextUsePolicy final : public EvictionPolicy {
 public:
  explicit NextUsePolicy(ExpertHeat& heat)
      : heat_(heat),
        shape_(heat.shape()),
        recent_(static_cast<size_t>(shape_.num_keys())),
        place_(static_cast<size_t>(shape_.num_keys()), kNotOffered),
        layers_(static_cast<size_t>(shape_.num_layers)) {}

  void OnPass(int64_t layer, std::span<const int32_t> experts) override {
    heat_.OnPass(layer, experts);
    float* recent = &recent_[static_cast<size_t>(shape_.Key(layer, 0))];
    for (int64_t expert = 0; expert < shape_.num_experts; ++expert) recent[expert] *= kRecentKept;
    for (int32_t expert : experts) recent[expert] += 1 - kRecentKept;
    current_ = layer;
    layers_[static_cast<size_t>(layer)].is_rarest_known = false;
  }
  void Offer(ExpertKey key) override {
    Layer& layer = layers_[static_cast<size_t>(shape_.Layer(key))];
    DF_CHECK(place_[static_cast<size_t>(key)] == kNotOffered);
    place_[static_cast<size_t>(key)] = layer.offered.size();
    layer.offered.push_back(key);
    layer.is_rarest_known = false;
  }
  void Withdraw(ExpertKey key) override {
    Layer& layer = layers_[static_cast<size_t>(shape_.Layer(key))];
    const size_t place = std::exchange(place_[static_cast<size_t>(key)], kNotOffered);
    DF_CHECK(place != kNotOffered);
    if (const ExpertKey last = layer.offered.back(); last != key) {
      layer.offered[place] = last;
      place_[static_cast<size_t>(last)] = place;
    }
    layer.offered.pop_back();
    layer.is_rarest_known = false;
  }
  std::optional<ExpertKey> Victim() override {
    std::optional<ExpertKey> victim;
    double furthest = -1;
    for (int64_t layer = 0; layer < shape_.num_layers; ++layer) {
      Layer& candidate = layers_[static_cast<size_t>(layer)];
      if (candidate.offered.empty()) continue;
      if (!candidate.is_rarest_known) FindRarest(candidate);
      const double layers_to_go = LayersToGo(layer, candidate.rarest_rate);
      if (layers_to_go <= furthest) continue;
      furthest = layers_to_go;
      victim = candidate.rarest;
    }
    return victim;
  }

 private:
  static constexpr size_t kNotOffered = std::numeric_limits<size_t>::max();
  // Chosen on a book read by k3-nano (docs/experts.md): a use in the last few passes foretells the
  // next one better than heat alone does.
  static constexpr float kRecentKept = 0.70710678f;  // a half-life of 2 passes
  static constexpr float kRecentShare = 0.3f;
  static constexpr float kLeastRate = 1e-6f;

  struct Layer {
    std::vector<ExpertKey> offered;
    // Rates of a layer change with its own passes only.
    bool is_rarest_known = false;
    ExpertKey rarest = 0;
    float rarest_rate = 0;
  };

  float Rate(ExpertKey key) const {
    return kRecentShare * recent_[static_cast<size_t>(key)] + (1 - kRecentShare) * heat_.Rate(key);
  }
  void FindRarest(Layer& layer) const {
    layer.rarest_rate = std::numeric_limits<float>::infinity();
    for (ExpertKey key : layer.offered) {
      const float rate = Rate(key);
      if (rate > layer.rarest_rate || (rate == layer.rarest_rate && key > layer.rarest)) continue;
      layer.rarest_rate = rate;
      layer.rarest = key;
    }
    layer.is_rarest_known = true;
  }
  // Layers that run until an expert with this chance per pass is expected to be picked.
  double LayersToGo(int64_t layer, float rate) const {
    const int64_t to_turn = (layer - current_ + shape_.num_layers - 1) % shape_.num_layers + 1;
    const double passes_missed = 1 / static_cast<double>(std::clamp(rate, kLeastRate, 1.0f)) - 1;
    return static_cast<double>(to_turn) + static_cast<double>(shape_.num_layers) * passes_missed;
  }

  ExpertHeat& heat_;
  ExpertShape shape_;
  std::vector<float> recent_;  // uses per pass, over the last few
  std::vector<size_t> place_;  // in Layer::offered
  std::vector<Layer> layers_;
  int64_t current_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeNextUsePolicy(ExpertHeat& heat) {
  return std::make_unique<NextUsePolicy>(heat);
}
std::unique_ptr<EvictionPolicy> MakeLruPolicy() { return std::make_unique<LruPolicy>(); }
std::unique_ptr<EvictionPolicy> MakeLayerLruPolicy(const ExpertShape& shape) {
  return std::make_unique<LayerLruPolicy>(shape);
}
std::unique_ptr<EvictionPolicy> MakeFrequencyPolicy(const ExpertShape& shape) {
  return std::make_unique<FrequencyPolicy>(shape);
}

}  // namespace deltafin
