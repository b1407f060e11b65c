#include "store/expert_store.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"
#include "store/aligned_bytes.h"
#include "store/slot_table.h"

namespace deltafin {
namespace {

// Reads in flight at a time. An NVMe disk needs several large reads to reach its bandwidth; more
// than this adds threads and no bandwidth.
constexpr int64_t kMaxReaders = 8;
constexpr size_t kSlotAlignment = 4096;  // what direct reads ask for
constexpr int64_t kMxfp4Block = 32;

// What went wrong, kept without the exception object so that the threads share none.
struct Failure {
  ErrorCode code = ErrorCode::kIo;
  std::string message;
};

// A scale byte of 255 is not a number: the bytes are not an expert.
std::optional<Failure> CheckScales(const Checkpoint& checkpoint, int64_t layer, int64_t expert,
                                   const ExpertWeights& weights) {
  const std::pair<const Matrix*, size_t> parts[] = {// matrix, its scales' index in the layout
                                                    {&weights.w1, 1},
                                                    {&weights.w2, 3},
                                                    {&weights.w3, 5}};
  for (const auto& [matrix, part] : parts) {
    const int64_t row_bytes = matrix->cols / kMxfp4Block;
    const void* hit =
        std::memchr(matrix->scales, 255, static_cast<size_t>(matrix->rows * row_bytes));
    if (hit == nullptr) continue;
    const int64_t at = static_cast<const std::byte*>(hit) - matrix->scales;
    const std::string name = LayoutOfExpert(checkpoint.config(), layer, expert)[part].name;
    const Extent span = checkpoint.ExpertSpan(layer, expert);
    return Failure{ErrorCode::kCorrupt,
                   format("{}: layer {} expert {}: tensor {} has the scale byte 255 in row {}, "
                          "block {}, expected 0 to 254; the shard is damaged, fetch it again",
                          checkpoint.file(span.shard).path(), layer, expert, name, at / row_bytes,
                          at % row_bytes)};
  }
  return std::nullopt;
}

// Reads one expert into `slot`, whose memory is allocated by its first read.
std::optional<Failure> ReadExpert(const Checkpoint& checkpoint, int64_t layer, int64_t expert,
                                  AlignedBytes& slot) noexcept {
  const Extent span = checkpoint.ExpertSpan(layer, expert);
  try {
    if (slot == nullptr) slot = AllocateAligned(span.bytes, kSlotAlignment);
    checkpoint.file(span.shard).ReadAt(span.offset, {slot.get(), span.bytes});
    return CheckScales(checkpoint, layer, expert, checkpoint.ViewExpert(slot.get()));
  } catch (const Error& e) {
    return Failure{e.code(), format("layer {} expert {}: {}", layer, expert, e.what())};
  } catch (const std::bad_alloc&) {
    return Failure{ErrorCode::kOutOfMemory,
                   format("layer {} expert {}: no memory for {} bytes; use fewer expert slots",
                          layer, expert, span.bytes)};
  } catch (const std::exception& e) {
    return Failure{ErrorCode::kIo, format("layer {} expert {}: {}", layer, expert, e.what())};
  }
}

enum class Phase : uint8_t {
  kWaiting,    // for a slot
  kQueued,     // has a slot, no reader has taken it yet
  kReading,    // a reader fills its slot
  kReady,      // in RAM
  kHandedOut,  // NextReady has returned it
  kReleased,
  kFailed,
};

struct Item {
  int32_t expert = 0;
  Phase phase = Phase::kWaiting;
  SlotTable::Slot slot = -1;
  ExpertWeights weights;
};

// The items of the current batch. Guarded by Shared::mu.
struct BatchState {
  int64_t layer = 0;
  std::vector<Item> items;
  std::deque<size_t> waiting;  // for a slot, in order of request
  std::deque<size_t> queued;   // for a reader
  std::vector<size_t> ready;   // not handed out yet
  size_t num_handed_out = 0;
  size_t num_reading = 0;
  std::optional<Failure> failure;
};

// What the store, its readers and the batch share. A batch may outlive the store: it then only
// reports that the store is gone.
struct Shared {
  Shared(const Checkpoint& c, int64_t num_slots)
      : checkpoint(c), slots(static_cast<size_t>(num_slots)), table(num_slots) {}

  const Checkpoint& checkpoint;
  std::vector<AlignedBytes> slots;  // an element belongs to its reader while it is being read

  std::mutex mu;
  std::condition_variable_any work;  // a read was queued
  std::condition_variable progress;  // a read ended, or the store did
  SlotTable table;
  BatchState* batch = nullptr;
  ExpertStoreCounters counters;
  bool stopped = false;
};

int64_t KeyOf(const Shared& shared, int64_t layer, int64_t expert) {
  return layer * shared.checkpoint.config().num_experts + expert;
}

// Gives slots to waiting items as long as there are any. Holds shared.mu.
void QueueReads(Shared& shared) {
  BatchState& batch = *shared.batch;
  while (!batch.waiting.empty()) {
    Item& item = batch.items[batch.waiting.front()];
    const auto slot = shared.table.Claim(KeyOf(shared, batch.layer, item.expert));
    if (!slot) return;
    item.slot = *slot;
    item.phase = Phase::kQueued;
    batch.queued.push_back(batch.waiting.front());
    batch.waiting.pop_front();
    shared.work.notify_one();
  }
}

void MarkReady(Shared& shared, BatchState& batch, size_t i) {
  Item& item = batch.items[i];
  item.phase = Phase::kReady;
  item.weights = shared.checkpoint.ViewExpert(shared.slots[static_cast<size_t>(item.slot)].get());
  batch.ready.push_back(i);
}

// Drops every read that no reader has taken yet. Holds shared.mu.
void CancelQueued(Shared& shared, BatchState& batch) {
  for (size_t i : batch.queued) {
    shared.table.Forget(batch.items[i].slot);
    batch.items[i].phase = Phase::kFailed;
  }
  for (size_t i : batch.waiting) batch.items[i].phase = Phase::kFailed;
  batch.queued.clear();
  batch.waiting.clear();
}

void ReadLoop(Shared& shared, const std::stop_token& stop) noexcept {
  std::unique_lock lock(shared.mu);
  for (;;) {
    const bool has_work = shared.work.wait(
        lock, stop, [&] { return shared.batch != nullptr && !shared.batch->queued.empty(); });
    if (!has_work || stop.stop_requested()) return;
    BatchState& batch = *shared.batch;  // lives until num_reading is 0
    const size_t i = batch.queued.front();
    batch.queued.pop_front();
    batch.items[i].phase = Phase::kReading;
    ++batch.num_reading;
    const int64_t layer = batch.layer;
    const int64_t expert = batch.items[i].expert;
    const SlotTable::Slot slot = batch.items[i].slot;

    lock.unlock();
    std::optional<Failure> failure =
        ReadExpert(shared.checkpoint, layer, expert, shared.slots[static_cast<size_t>(slot)]);
    lock.lock();

    --batch.num_reading;
    if (failure) {
      shared.table.Forget(slot);
      batch.items[i].phase = Phase::kFailed;
      if (!batch.failure) batch.failure = std::move(failure);
      CancelQueued(shared, batch);
    } else {
      shared.counters.bytes_read += shared.checkpoint.expert_bytes();
      MarkReady(shared, batch, i);
    }
    shared.progress.notify_all();
  }
}

class Batch final : public ExpertBatch {
 public:
  // Holds shared->mu.
  Batch(std::shared_ptr<Shared> shared, int64_t layer, std::span<const int32_t> ids)
      : shared_(std::move(shared)) {
    state_.layer = layer;
    state_.items.resize(ids.size());
    state_.ready.reserve(ids.size());
    // Hits are pinned first, so that no miss of the same request evicts one.
    for (size_t i = 0; i < ids.size(); ++i) {
      Item& item = state_.items[i];
      item.expert = ids[i];
      if (const auto slot = shared_->table.Find(KeyOf(*shared_, layer, ids[i]))) {
        item.slot = *slot;
        shared_->table.Pin(*slot);
        MarkReady(*shared_, state_, i);
        ++shared_->counters.hits;
      } else {
        state_.waiting.push_back(i);
      }
    }
    shared_->counters.requested += ids.size();
    shared_->batch = &state_;
    QueueReads(*shared_);
  }

  ~Batch() override {
    std::unique_lock lock(shared_->mu);
    CancelQueued(*shared_, state_);
    shared_->progress.wait(lock, [&] { return state_.num_reading == 0; });
    for (Item& item : state_.items) {
      if (item.phase == Phase::kReady || item.phase == Phase::kHandedOut) {
        shared_->table.Unpin(item.slot);
      }
    }
    shared_->batch = nullptr;
  }

  std::vector<size_t> NextReady() override {
    std::unique_lock lock(shared_->mu);
    shared_->progress.wait(lock, [&] {
      if (shared_->stopped || state_.failure || !state_.ready.empty()) return true;
      if (state_.num_handed_out == state_.items.size()) return true;
      // Nothing on its way would be a wait for ever: the caller holds all slots.
      DF_CHECK(state_.num_reading > 0 || !state_.queued.empty());
      return false;
    });
    if (state_.failure) throw Error(state_.failure->code, state_.failure->message);
    if (shared_->stopped) throw Error(ErrorCode::kCancelled, "the expert store was closed");
    for (size_t i : state_.ready) state_.items[i].phase = Phase::kHandedOut;
    state_.num_handed_out += state_.ready.size();
    return std::exchange(state_.ready, {});
  }

  ExpertWeights weights(size_t i) const override {
    std::lock_guard lock(shared_->mu);
    DF_CHECK(i < state_.items.size() && state_.items[i].phase == Phase::kHandedOut);
    return state_.items[i].weights;
  }

  void Release(size_t i) override {
    std::lock_guard lock(shared_->mu);
    DF_CHECK(i < state_.items.size() && state_.items[i].phase == Phase::kHandedOut);
    state_.items[i].phase = Phase::kReleased;
    shared_->table.Unpin(state_.items[i].slot);
    QueueReads(*shared_);
  }

 private:
  std::shared_ptr<Shared> shared_;
  BatchState state_;
};

class SlotExpertStore final : public ExpertStore {
 public:
  SlotExpertStore(const Checkpoint& checkpoint, int64_t num_slots)
      : shared_(std::make_shared<Shared>(checkpoint, num_slots)) {
    for (int64_t i = 0; i < std::min(kMaxReaders, num_slots); ++i) {
      readers_.emplace_back(
          [shared = shared_](const std::stop_token& stop) { ReadLoop(*shared, stop); });
    }
  }

  ~SlotExpertStore() override {
    {
      std::lock_guard lock(shared_->mu);
      shared_->stopped = true;
      if (shared_->batch != nullptr) CancelQueued(*shared_, *shared_->batch);
    }
    readers_.clear();  // stops and joins: reads in flight end first
    shared_->progress.notify_all();
  }

  std::unique_ptr<ExpertBatch> Request(int64_t layer, std::span<const int32_t> ids) override {
    const ModelConfig& config = shared_->checkpoint.config();
    DF_CHECK(0 <= layer && layer < config.num_layers && config.IsMoe(layer));
    std::unordered_set<int32_t> distinct;
    for (int32_t id : ids) {
      DF_CHECK(0 <= id && id < config.num_experts);
      DF_CHECK(distinct.insert(id).second);
    }
    std::lock_guard lock(shared_->mu);
    DF_CHECK(shared_->batch == nullptr);
    return std::make_unique<Batch>(shared_, layer, ids);
  }

  ExpertStoreCounters counters() const override {
    std::lock_guard lock(shared_->mu);
    return shared_->counters;
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::vector<std::jthread> readers_;
};

}  // namespace

std::unique_ptr<ExpertStore> MakeExpertStore(const Checkpoint& checkpoint, int64_t num_slots) {
  DF_CHECK(num_slots >= 1);
  const ModelConfig& config = checkpoint.config();
  // More slots than there are experts would never be used.
  const int64_t num_experts = config.num_layers * config.num_experts;
  return std::make_unique<SlotExpertStore>(checkpoint, std::min(num_slots, num_experts));
}

}  // namespace deltafin
