#include "store/expert_store.h"

#include <algorithm>
#include <chrono>
#include <stop_token>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "store/expert_slots.h"

namespace deltafin {
namespace {

constexpr std::chrono::minutes kHeatSavedEvery{3};

class SlotBatch final : public ExpertBatch {
 public:
  SlotBatch(std::shared_ptr<ExpertSlots> slots, int64_t layer, std::span<const int32_t> ids)
      : slots_(std::move(slots)) {
    slots_->Begin(layer, ids);
  }
  ~SlotBatch() override { slots_->End(); }

  std::vector<size_t> NextReady() override { return slots_->NextReady(); }
  ExpertWeights weights(size_t i) const override { return slots_->weights(i); }
  void Release(size_t i) override { slots_->Release(i); }

 private:
  const std::shared_ptr<ExpertSlots> slots_;  // a batch may outlive the store: it then fails
};

class SlotExpertStore final : public ExpertStore, private WeightOrigin {
 public:
  SlotExpertStore(const Checkpoint& checkpoint, ReadQueue& queue, int64_t num_slots,
                  int64_t max_ahead, const ExpertStoreOptions& options)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        heat_path_(options.heat_path),
        keeper_(options.keeper),
        slots_(std::make_shared<ExpertSlots>(checkpoint, queue, num_slots, max_ahead, options)) {
    if (keeper_ != nullptr) {
      keeper_->SetExpertOrigin(this);
      slots_->GiveTo(*keeper_);
    }
    std::vector<ExpertKey> hottest = slots_->Hottest(static_cast<size_t>(num_slots));
    if (hottest.empty()) return;
    warmer_ =
        std::jthread([slots = slots_, keys = std::move(hottest)](const std::stop_token& stop) {
          for (ExpertKey key : keys) {
            if (!slots->Warm(key, stop)) return;
          }
        });
  }

  ~SlotExpertStore() override {
    warmer_ = {};  // stops and joins
    slots_->Stop();
    KeepHeat();
    if (keeper_ == nullptr) return;
    keeper_->SetExpertOrigin(nullptr);
    keeper_->SetSlots(nullptr, 0, 0);
  }

  std::unique_ptr<ExpertBatch> Request(int64_t layer, std::span<const int32_t> ids) override {
    CheckIds(layer, ids);
    if (std::chrono::steady_clock::now() - heat_saved_ >= kHeatSavedEvery) KeepHeat();
    return std::make_unique<SlotBatch>(slots_, layer, ids);
  }

  void Hint(int64_t layer, std::span<const int32_t> ids) override {
    CheckIds(layer, ids);
    slots_->Hint(layer, ids);
  }
  bool WantsHint(int64_t layer) const override { return slots_->WantsHint(layer); }
  ExpertStoreCounters counters() const override { return slots_->counters(); }
  std::vector<LayerExpertCounters> layer_counters() const override {
    return slots_->layer_counters();
  }

 private:
  Matrix ReadAgain(uint64_t id, std::vector<std::byte>& bytes) override {
    const int64_t number = ExpertNumberOf(id);
    const Extent span =
        checkpoint_.ExpertSpan(number / config_.num_experts, number % config_.num_experts);
    bytes.resize(span.bytes);
    checkpoint_.file(span.shard).ReadAt(span.offset, bytes);
    const ExpertWeights view = checkpoint_.ViewExpert(bytes.data());
    const ExpertPart part = ExpertPartOf(id);
    return part == ExpertPart::kW1 ? view.w1 : part == ExpertPart::kW3 ? view.w3 : view.w2;
  }

  void CheckIds(int64_t layer, std::span<const int32_t> ids) const {
    DF_CHECK(0 <= layer && layer < config_.num_layers && config_.IsMoe(layer));
    std::unordered_set<int32_t> distinct;
    for (int32_t id : ids) {
      DF_CHECK(0 <= id && id < config_.num_experts);
      DF_CHECK(distinct.insert(id).second);
    }
  }

  void KeepHeat() {
    heat_saved_ = std::chrono::steady_clock::now();
    if (heat_path_.empty()) return;
    if (const std::string bytes = slots_->SerializeHeat(); !bytes.empty()) {
      SaveHeat(heat_path_, bytes);
    }
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const std::string heat_path_;
  WeightKeeper* const keeper_;
  const std::shared_ptr<ExpertSlots> slots_;
  std::chrono::steady_clock::time_point heat_saved_ = std::chrono::steady_clock::now();
  std::jthread warmer_;
};

}  // namespace

std::unique_ptr<ExpertStore> MakeExpertStore(const Checkpoint& checkpoint, ReadQueue& queue,
                                             const ExpertStoreOptions& options) {
  DF_CHECK(options.num_slots >= 1);
  const ModelConfig& config = checkpoint.config();
  // More slots than there are experts would never be used.
  const int64_t num_slots = std::min(options.num_slots, config.num_layers * config.num_experts);
  // A guess may hold a quarter of the slots, and no more than two tokens' picks: what is still
  // being read of it when the real picks are known holds them up.
  const int64_t max_ahead = options.prefetch == Prefetch::kOff
                                ? 0
                                : std::min(num_slots / 4, 2 * config.experts_per_token);
  return std::make_unique<SlotExpertStore>(checkpoint, queue, num_slots, max_ahead, options);
}

}  // namespace deltafin
