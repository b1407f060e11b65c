// The slots of the expert store and the reads that fill them. Internal to the store.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/page_memory.h"
#include "io/read_queue.h"
#include "store/eviction_policy.h"
#include "store/expert_check.h"
#include "store/expert_heat.h"
#include "store/expert_store.h"
#include "store/prefetch_gauge.h"
#include "store/slot_table.h"

namespace deltafin {

// Three parties fill slots: the batch (reads that somebody waits for), the hint (a guess of the
// next request) and the warmer (what was hot in earlier runs). All of the batch's and the hint's
// functions are called by one thread, Warm by another, the listener's by the queue's threads.
class ExpertSlots final : public ReadListener {
 public:
  // `max_ahead`: slots that a hint may hold; 0 switches hints off.
  ExpertSlots(const Checkpoint& checkpoint, ReadQueue& queue, int64_t num_slots, int64_t max_ahead,
              const ExpertStoreOptions& options);

  // The batch; see ExpertStore and ExpertBatch.
  void Begin(int64_t layer, std::span<const int32_t> ids);
  std::vector<size_t> NextReady();
  ExpertWeights weights(size_t item) const;
  void Release(size_t item);
  void End();

  void Hint(int64_t layer, std::span<const int32_t> ids);
  bool WantsHint(int64_t layer) const;

  // Reads an expert into a free slot, waiting while other such reads are under way. False when that
  // is no longer wanted: no slots to spare, or `stop`.
  [[nodiscard]] bool Warm(ExpertKey key, const std::stop_token& stop);

  // Lets a device read the slots where they are.
  void GiveTo(WeightKeeper& keeper) const {
    keeper.SetSlots(memory_.data(), slot_bytes_, static_cast<int64_t>(slots_.size()));
  }

  // Takes back or waits for all reads; a batch then fails. After this the queue is not used.
  void Stop();

  std::vector<ExpertKey> Hottest(size_t count) const;
  // For the file; empty when no pass was seen by this process.
  std::string SerializeHeat() const;
  ExpertStoreCounters counters() const;
  std::vector<LayerExpertCounters> layer_counters() const;

  void OnRead(uint64_t tag, std::span<const std::byte> data) noexcept override;
  void OnReadFailed(uint64_t tag, std::exception_ptr error) noexcept override;

 private:
  using Slot = SlotTable::Slot;

  // On whose behalf a slot is pinned.
  enum class Holder : uint8_t {
    kNone,    // not pinned
    kBatch,   // an item of the batch
    kHint,    // a guess whose layer has not been asked for yet
    kUnused,  // a wrong guess that is still being read
    kWarm,    // being read by the warmer
  };
  enum class Origin : uint8_t { kDemand, kHint, kWarm };
  struct SlotState {
    const std::byte* data = nullptr;  // the expert, somewhere in the slot
    int64_t layer = -1;               // -1: the slot has no expert
    int32_t expert = 0;
    Holder holder = Holder::kNone;
    Origin origin = Origin::kDemand;
    bool is_reading = false;
    bool is_unused_guess = false;  // read on a hint and not asked for since
    bool replaced = false;         // another expert gave way to it
    size_t item = 0;               // of the batch, when that holds it
  };

  enum class Phase : uint8_t { kWaiting, kReading, kReady, kHandedOut, kReleased, kFailed };
  struct Item {
    int32_t expert = 0;
    Phase phase = Phase::kWaiting;
    Slot slot = -1;  // none: the keeper holds it
  };
  struct Batch {
    explicit Batch(int64_t of_layer) : layer(of_layer) {}
    int64_t layer;
    std::vector<Item> items;
    std::deque<size_t> waiting;  // for a slot, in order of request
    std::vector<size_t> ready;   // not handed out yet
    size_t num_handed_out = 0;
    size_t num_reading = 0;
    std::optional<ExpertFailure> failure;
  };
  struct HintState {
    int64_t layer = -1;  // -1: there is none
    std::vector<int32_t> ids;
    std::vector<Slot> slots;  // that it holds
  };

  SlotState& state(Slot slot) { return slots_[static_cast<size_t>(slot)]; }
  std::byte* BufferOf(Slot slot) const {
    return memory_.data() + static_cast<size_t>(slot) * slot_bytes_;
  }

  // Called by the thread of the batch.
  bool IsHeld(int64_t layer, int32_t expert) const;

  // These need mu_.
  void Attach(size_t item, std::vector<Slot>& promoted, PrefetchOutcome& outcome);
  void CountHint(std::span<const int32_t> ids);
  std::vector<Slot> DropHint(PrefetchOutcome& outcome);
  std::optional<ReadRequest> ClaimForRead(int64_t layer, int32_t expert, Holder holder,
                                          Origin origin);
  void CollectWaiting(std::vector<ReadRequest>& requests);
  void MarkReady(size_t item);
  void Arrive(Slot slot, const std::byte* data);
  void Fail(Slot slot, ExpertFailure failure);
  // What the slot was claimed for did not come.
  void Forget(Slot slot);
  double MeanUseOfASlot() const;

  // These need queue_mu_ and take mu_ themselves.
  void SubmitWaiting();
  void CancelReads(std::span<const Slot> slots, PrefetchOutcome* outcome = nullptr);

  const Checkpoint& checkpoint_;
  ReadQueue& queue_;
  const ExpertShape shape_;
  const int64_t num_moe_layers_;
  const int64_t max_ahead_;
  PhaseClock* const clock_;
  const WeightKeeper* const keeper_;
  const size_t slot_bytes_;
  // Of all slots in one piece, which takes RAM as it is filled: huge pages go across slots.
  const PageBuffer memory_;

  // Held around every call of the queue, so that no read is cancelled or promoted between its claim
  // and its submission. Taken before mu_, which the listener takes while it may hold up the queue.
  std::mutex queue_mu_;

  mutable std::mutex mu_;
  std::condition_variable_any progress_;  // a read ended, or the store did
  std::vector<SlotState> slots_;
  std::vector<int64_t> num_in_slots_;  // experts of each layer, on their way or there
  ExpertHeat heat_;
  std::unique_ptr<EvictionPolicy> policy_;
  SlotTable table_;
  std::optional<Batch> batch_;
  HintState hint_;
  // What the keeper is offered: the experts that were the hottest in earlier runs, or (empty, where
  // nothing is known of those) whatever is used again.
  std::vector<bool> offered_;                   // of each key
  std::vector<bool> used_;                      // of each key
  std::vector<std::vector<int32_t>> last_ids_;  // of each layer
  std::vector<PrefetchGauge> gauges_;           // of each layer
  ExpertStoreCounters counters_;
  std::vector<LayerExpertCounters> layer_counters_;
  uint64_t num_batches_ = 0;
  int64_t num_reading_ = 0;
  int64_t num_warming_ = 0;
  uint64_t num_events_ = 0;  // reads that ended
  bool stopped_ = false;
};

}  // namespace deltafin
