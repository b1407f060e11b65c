#include "store/expert_slots.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "deltafin/error.h"
#include "device/weight_keeper.h"

namespace deltafin {
namespace {

// Enough for an NVMe disk while nothing else wants it; a hint waits behind no more than these.
constexpr int64_t kMaxWarming = 4;

int64_t CountMoeLayers(const ModelConfig& config) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) count += config.IsMoe(layer);
  return count;
}

bool Contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

ExpertSlots::ExpertSlots(const Checkpoint& checkpoint, ReadQueue& queue, int64_t num_slots,
                         int64_t max_ahead, const ExpertStoreOptions& options)
    : checkpoint_(checkpoint),
      queue_(queue),
      shape_{checkpoint.config().num_layers, checkpoint.config().num_experts},
      num_moe_layers_(CountMoeLayers(checkpoint.config())),
      max_ahead_(max_ahead),
      clock_(options.clock),
      keeper_(options.keeper),
      slot_bytes_(ReadBufferBytes(checkpoint.expert_bytes())),
      memory_(static_cast<size_t>(num_slots) * slot_bytes_),
      slots_(static_cast<size_t>(num_slots)),
      num_in_slots_(static_cast<size_t>(shape_.num_layers)),
      heat_(shape_),
      policy_(MakeNextUsePolicy(heat_)),
      table_(num_slots, *policy_),
      last_ids_(static_cast<size_t>(shape_.num_layers)),
      gauges_(static_cast<size_t>(shape_.num_layers)),
      layer_counters_(static_cast<size_t>(shape_.num_layers)) {
  AdviseHugePages(memory_.data(), memory_.size());
  if (!options.heat_path.empty()) LoadHeat(options.heat_path, heat_);
  if (keeper_ == nullptr) return;
  const auto num_keys = static_cast<size_t>(shape_.num_keys());
  used_.resize(num_keys);
  if (heat_.empty()) return;
  offered_.resize(num_keys);
  for (ExpertKey key : heat_.Hottest(static_cast<size_t>(options.keeper_experts))) {
    offered_[static_cast<size_t>(key)] = true;
  }
}

bool ExpertSlots::IsHeld(int64_t layer, int32_t expert) const {
  if (keeper_ == nullptr) return false;
  const int64_t number = shape_.Key(layer, expert);
  return keeper_->Holds(ExpertId(number, ExpertPart::kW1)) &&
         keeper_->Holds(ExpertId(number, ExpertPart::kW3)) &&
         keeper_->Holds(ExpertId(number, ExpertPart::kW2));
}

// ---- the batch ----

void ExpertSlots::Begin(int64_t layer, std::span<const int32_t> ids) {
  const std::lock_guard talk(queue_mu_);
  std::vector<Slot> promoted;
  std::vector<Slot> wrong;
  PrefetchOutcome outcome;
  bool was_hinted = false;
  {
    const std::lock_guard lock(mu_);
    DF_CHECK(!batch_ && !stopped_);
    ++num_batches_;
    policy_->OnPass(layer, ids);
    batch_.emplace(layer);
    batch_->items.resize(ids.size());
    batch_->ready.reserve(ids.size());
    // Hits are pinned first, so that no miss of the same request evicts one.
    for (size_t i = 0; i < ids.size(); ++i) {
      batch_->items[i].expert = ids[i];
      Attach(i, promoted, outcome);
    }
    counters_.requested += ids.size();
    layer_counters_[static_cast<size_t>(layer)].requested += ids.size();
    last_ids_[static_cast<size_t>(layer)].assign(ids.begin(), ids.end());
    was_hinted = hint_.layer == layer;
    if (was_hinted) {
      CountHint(ids);
      wrong = DropHint(outcome);
    } else {
      gauges_[static_cast<size_t>(layer)].OnNoHint();
    }
  }
  CancelReads(wrong, &outcome);
  for (Slot slot : promoted) queue_.Promote(this, static_cast<uint64_t>(slot));
  SubmitWaiting();
  if (!was_hinted) return;
  const std::lock_guard lock(mu_);
  gauges_[static_cast<size_t>(layer)].OnOutcome(outcome, MeanUseOfASlot());
}

// Takes what is in a slot or on its way to one.
void ExpertSlots::Attach(size_t item, std::vector<Slot>& promoted, PrefetchOutcome& outcome) {
  Item& wanted = batch_->items[item];
  LayerExpertCounters& of_layer = layer_counters_[static_cast<size_t>(batch_->layer)];
  const auto slot = table_.Find(shape_.Key(batch_->layer, wanted.expert));
  // A slot that nobody else has a claim to keeps a copy until another expert needs it.
  if ((!slot || state(*slot).holder == Holder::kNone) && IsHeld(batch_->layer, wanted.expert)) {
    MarkReady(item);
    ++counters_.hits;
    ++of_layer.hits;
    return;
  }
  if (!slot) {
    batch_->waiting.push_back(item);
    return;
  }
  SlotState& s = state(*slot);
  const bool from_hint = s.holder == Holder::kHint;
  const bool first_use = std::exchange(s.is_unused_guess, false);
  if (s.holder == Holder::kNone) table_.Pin(*slot);
  s.holder = Holder::kBatch;
  s.item = item;
  wanted.slot = *slot;
  if (s.is_reading) {
    wanted.phase = Phase::kReading;
    ++batch_->num_reading;
    promoted.push_back(*slot);
    outcome.right_late += from_hint;
    counters_.ahead_late += first_use;
    of_layer.ahead_late += first_use;
    return;
  }
  MarkReady(item);
  outcome.right_ready += from_hint;
  ++counters_.hits;
  ++of_layer.hits;
  counters_.ahead_hits += first_use;
  of_layer.ahead_hits += first_use;
}

void ExpertSlots::CountHint(std::span<const int32_t> ids) {
  LayerExpertCounters& of_layer = layer_counters_[static_cast<size_t>(hint_.layer)];
  of_layer.foretold_of += ids.size();
  for (int32_t id : ids) of_layer.foretold += Contains(hint_.ids, id);
}

// Ends the hint. What it still holds was guessed wrong: what has arrived is the next to be given
// up; returns the slots that are still being read.
std::vector<ExpertSlots::Slot> ExpertSlots::DropHint(PrefetchOutcome& outcome) {
  std::vector<Slot> reading;
  for (Slot slot : hint_.slots) {
    SlotState& s = state(slot);
    if (s.holder != Holder::kHint) continue;  // the batch took it over
    if (s.is_reading) {
      s.holder = Holder::kUnused;
      reading.push_back(slot);
      ++outcome.wrong_late;
      outcome.replaced += s.replaced;
      continue;
    }
    s.holder = Holder::kNone;
    table_.UnpinUnneeded(slot);
    ++outcome.wrong_done;
    outcome.replaced += s.replaced;
  }
  hint_ = {};
  return reading;
}

// A slot for an expert that no slot holds, and the read that fills it. Empty when all are pinned.
std::optional<ReadRequest> ExpertSlots::ClaimForRead(int64_t layer, int32_t expert, Holder holder,
                                                     Origin origin) {
  const bool has_spare = table_.has_spare();
  const auto slot = table_.Claim(shape_.Key(layer, expert));
  if (!slot) return std::nullopt;
  SlotState& s = state(*slot);
  s.replaced = !has_spare;
  if (std::exchange(s.is_unused_guess, false)) counters_.bytes_wasted += checkpoint_.expert_bytes();
  const Extent span = checkpoint_.ExpertSpan(layer, expert);
  if (s.layer >= 0) --num_in_slots_[static_cast<size_t>(s.layer)];
  ++num_in_slots_[static_cast<size_t>(layer)];
  s.layer = layer;
  s.expert = expert;
  s.holder = holder;
  s.origin = origin;
  s.is_reading = true;
  s.is_unused_guess = origin == Origin::kHint;
  ++num_reading_;
  ReadRequest request;
  request.file = &checkpoint_.file(span.shard);
  request.offset = span.offset;
  request.bytes = span.bytes;
  request.buffer = BufferOf(*slot);
  request.priority = origin == Origin::kDemand ? ReadPriority::kDemand : ReadPriority::kAhead;
  request.tag = static_cast<uint64_t>(*slot);
  request.listener = this;
  return request;
}

// Claims slots for waiting items as long as there are any.
void ExpertSlots::CollectWaiting(std::vector<ReadRequest>& requests) {
  while (!batch_->waiting.empty() && !batch_->failure) {
    const size_t i = batch_->waiting.front();
    Item& item = batch_->items[i];
    const auto request = ClaimForRead(batch_->layer, item.expert, Holder::kBatch, Origin::kDemand);
    if (!request) return;
    item.slot = static_cast<Slot>(request->tag);
    item.phase = Phase::kReading;
    state(item.slot).item = i;
    ++batch_->num_reading;
    batch_->waiting.pop_front();
    requests.push_back(*request);
  }
}

void ExpertSlots::SubmitWaiting() {
  std::vector<ReadRequest> requests;
  std::vector<Slot> dropped;
  bool again = true;
  while (again) {
    {
      const std::lock_guard lock(mu_);
      CollectWaiting(requests);
      // What is needed now goes before what may be needed later.
      again = !batch_->waiting.empty() && !hint_.slots.empty();
      PrefetchOutcome ignored;
      if (again) dropped = DropHint(ignored);
    }
    if (again) CancelReads(dropped);
  }
  if (!requests.empty()) queue_.Submit(requests);
}

// Takes back those of the reads that have not started, and frees their slots.
void ExpertSlots::CancelReads(std::span<const Slot> slots, PrefetchOutcome* outcome) {
  for (Slot slot : slots) {
    if (!queue_.Cancel(this, static_cast<uint64_t>(slot))) continue;
    const std::lock_guard lock(mu_);
    SlotState& s = state(slot);
    if (s.holder == Holder::kBatch) {
      batch_->items[s.item].phase = Phase::kFailed;
      --batch_->num_reading;
    }
    if (s.origin == Origin::kWarm) --num_warming_;
    s.holder = Holder::kNone;
    s.is_reading = false;
    s.is_unused_guess = false;
    --num_reading_;
    ++num_events_;
    Forget(slot);
    if (outcome == nullptr) continue;
    --outcome->wrong_late;
    ++outcome->wrong_dropped;
    outcome->replaced -= s.replaced;
  }
}

void ExpertSlots::MarkReady(size_t item) {
  batch_->items[item].phase = Phase::kReady;
  batch_->ready.push_back(item);
}

std::vector<size_t> ExpertSlots::NextReady() {
  for (;;) {
    uint64_t seen = 0;
    {
      const std::lock_guard lock(mu_);
      Batch& batch = *batch_;
      if (batch.failure) throw Error(batch.failure->code, batch.failure->message);
      if (stopped_) throw Error(ErrorCode::kCancelled, "the expert store was closed");
      if (!batch.ready.empty() || batch.num_handed_out == batch.items.size()) {
        for (size_t i : batch.ready) batch.items[i].phase = Phase::kHandedOut;
        batch.num_handed_out += batch.ready.size();
        return std::exchange(batch.ready, {});
      }
      seen = num_events_;
    }
    {
      // A wrong guess that has arrived since may have left a slot to an item that waits.
      const std::lock_guard talk(queue_mu_);
      SubmitWaiting();
    }
    std::unique_lock lock(mu_);
    // Nothing on its way would be a wait for ever: the caller holds all slots.
    DF_CHECK(num_events_ != seen || num_reading_ > 0 || batch_->failure);
    const PhaseScope phase(clock_, deltafin::Phase::kExpertWait);
    const auto start = std::chrono::steady_clock::now();
    progress_.wait(lock, [&] { return num_events_ != seen || stopped_ || batch_->failure; });
    const double waited =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    counters_.wait_seconds += waited;
    layer_counters_[static_cast<size_t>(batch_->layer)].wait_seconds += waited;
  }
}

ExpertWeights ExpertSlots::weights(size_t item) const {
  const std::lock_guard lock(mu_);
  DF_CHECK(item < batch_->items.size() && batch_->items[item].phase == Phase::kHandedOut);
  const Item& wanted = batch_->items[item];
  ExpertWeights view;
  if (wanted.slot >= 0) {
    view = checkpoint_.ViewExpert(slots_[static_cast<size_t>(wanted.slot)].data);
  } else {
    const ModelConfig& c = checkpoint_.config();
    view.w1 = {WeightFormat::kMxfp4, c.moe_intermediate_size, c.latent_size};
    view.w3 = view.w1;
    view.w2 = {WeightFormat::kMxfp4, c.latent_size, c.moe_intermediate_size};
  }
  if (keeper_ == nullptr) return view;
  const int64_t number = shape_.Key(batch_->layer, wanted.expert);
  const auto& offered = offered_.empty() ? used_ : offered_;
  if (wanted.slot >= 0 && !offered[static_cast<size_t>(number)]) return view;
  view.w1.id = ExpertId(number, ExpertPart::kW1);
  view.w3.id = ExpertId(number, ExpertPart::kW3);
  view.w2.id = ExpertId(number, ExpertPart::kW2);
  return view;
}

void ExpertSlots::Release(size_t item) {
  {
    const std::lock_guard lock(mu_);
    DF_CHECK(item < batch_->items.size() && batch_->items[item].phase == Phase::kHandedOut);
    Item& released = batch_->items[item];
    released.phase = Phase::kReleased;
    if (keeper_ != nullptr) {
      used_[static_cast<size_t>(shape_.Key(batch_->layer, released.expert))] = true;
    }
    if (released.slot >= 0) {
      state(released.slot).holder = Holder::kNone;
      if (IsHeld(batch_->layer, released.expert)) {
        table_.UnpinUnneeded(released.slot);  // the keeper has it now
      } else {
        table_.Unpin(released.slot);
      }
    }
    if (batch_->waiting.empty() || stopped_) return;
  }
  const std::lock_guard talk(queue_mu_);
  SubmitWaiting();
}

void ExpertSlots::End() {
  std::vector<Slot> reading;
  {
    const std::lock_guard lock(mu_);
    batch_->waiting.clear();
    for (const Item& item : batch_->items) {
      if (item.phase == Phase::kReading) reading.push_back(item.slot);
    }
  }
  if (!reading.empty()) {  // not after Stop, which leaves none
    const std::lock_guard talk(queue_mu_);
    CancelReads(reading);
  }
  std::unique_lock lock(mu_);
  progress_.wait(lock, [&] { return batch_->num_reading == 0; });
  for (const Item& item : batch_->items) {
    if (item.phase != Phase::kReady && item.phase != Phase::kHandedOut) continue;
    if (item.slot < 0) continue;
    state(item.slot).holder = Holder::kNone;
    table_.Unpin(item.slot);
  }
  batch_.reset();
}

// ---- guesses ----

bool ExpertSlots::WantsHint(int64_t layer) const {
  const std::lock_guard lock(mu_);
  if (max_ahead_ == 0 || !gauges_[static_cast<size_t>(layer)].on()) return false;
  // Where nothing is missing, a guess would be waited for in vain.
  const auto num_experts = static_cast<int32_t>(shape_.num_experts);
  if (num_in_slots_[static_cast<size_t>(layer)] == num_experts) return false;
  if (keeper_ == nullptr) return true;
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    if (!table_.Find(shape_.Key(layer, expert)) && !IsHeld(layer, expert)) return true;
  }
  return false;
}

void ExpertSlots::Hint(int64_t layer, std::span<const int32_t> ids) {
  if (!WantsHint(layer)) return;
  const std::lock_guard talk(queue_mu_);
  std::vector<Slot> dropped;
  {
    const std::lock_guard lock(mu_);
    // A pass that lacks slots for what it needs now has none to spare.
    if (stopped_ || (batch_ && !batch_->waiting.empty())) return;
    PrefetchOutcome ignored;
    dropped = DropHint(ignored);
  }
  CancelReads(dropped);

  std::vector<ReadRequest> requests;
  {
    const std::lock_guard lock(mu_);
    if (ids.empty()) ids = last_ids_[static_cast<size_t>(layer)];
    if (ids.empty()) return;
    hint_.layer = layer;
    hint_.ids.assign(ids.begin(), ids.end());
    for (int32_t expert : ids) {
      if (static_cast<int64_t>(hint_.slots.size()) >= max_ahead_) break;
      if (table_.Find(shape_.Key(layer, expert)) || IsHeld(layer, expert)) continue;
      const auto request = ClaimForRead(layer, expert, Holder::kHint, Origin::kHint);
      if (!request) break;
      hint_.slots.push_back(static_cast<Slot>(request->tag));
      requests.push_back(*request);
    }
  }
  if (!requests.empty()) queue_.Submit(requests);
}

// How often the content of a slot is used in one pass.
double ExpertSlots::MeanUseOfASlot() const {
  const double passes = static_cast<double>(num_batches_) / static_cast<double>(num_moe_layers_);
  const double uses = static_cast<double>(counters_.hits) / passes;
  return std::min(1.0, uses / static_cast<double>(slots_.size()));
}

bool ExpertSlots::Warm(ExpertKey key, const std::stop_token& stop) {
  const auto may_go_on = [&] { return !stopped_ && !stop.stop_requested(); };
  {
    std::unique_lock lock(mu_);
    progress_.wait(lock, stop, [&] { return stopped_ || num_warming_ < kMaxWarming; });
    if (!may_go_on()) return false;
  }
  const std::lock_guard talk(queue_mu_);
  std::optional<ReadRequest> request;
  {
    const std::lock_guard lock(mu_);
    // One layer's worth of slots, and a hint's, stay free for what is asked for meanwhile.
    const int64_t reserve = checkpoint_.config().experts_per_token + max_ahead_;
    if (!may_go_on() || table_.num_free() <= reserve) return false;
    if (table_.Find(key)) return true;
    const int64_t layer = shape_.Layer(key);
    if (!checkpoint_.config().IsMoe(layer)) return true;
    request = ClaimForRead(layer, static_cast<int32_t>(key - shape_.Key(layer, 0)), Holder::kWarm,
                           Origin::kWarm);
    ++num_warming_;
  }
  queue_.Submit({&*request, 1});
  return true;
}

// ---- the queue's threads ----

void ExpertSlots::OnRead(uint64_t tag, std::span<const std::byte> data) noexcept {
  const Slot slot = static_cast<Slot>(tag);
  // What is being read does not change, so the slow part needs no lock.
  std::optional<ExpertFailure> failure =
      CheckExpertBytes(checkpoint_, state(slot).layer, state(slot).expert, data.data());
  const std::lock_guard lock(mu_);
  if (failure) {
    Fail(slot, std::move(*failure));
  } else {
    Arrive(slot, data.data());
  }
  progress_.notify_all();
}

void ExpertSlots::OnReadFailed(uint64_t tag, std::exception_ptr error) noexcept {
  const Slot slot = static_cast<Slot>(tag);
  ExpertFailure failure =
      ExpertReadFailure(checkpoint_, state(slot).layer, state(slot).expert, error);
  const std::lock_guard lock(mu_);
  Fail(slot, std::move(failure));
  progress_.notify_all();
}

void ExpertSlots::Arrive(Slot slot, const std::byte* data) {
  SlotState& s = state(slot);
  s.data = data;
  s.is_reading = false;
  --num_reading_;
  ++num_events_;
  uint64_t& bytes = s.origin == Origin::kDemand ? counters_.bytes_demand
                    : s.origin == Origin::kHint ? counters_.bytes_ahead
                                                : counters_.bytes_warm;
  bytes += checkpoint_.expert_bytes();
  if (s.origin == Origin::kWarm) --num_warming_;
  switch (s.holder) {
    case Holder::kBatch:
      --batch_->num_reading;
      MarkReady(s.item);
      return;
    case Holder::kUnused:
      s.holder = Holder::kNone;
      table_.UnpinUnneeded(slot);
      return;
    case Holder::kWarm:
      s.holder = Holder::kNone;
      table_.Unpin(slot);
      return;
    case Holder::kHint:
    case Holder::kNone:
      return;
  }
}

// Only a read that the batch waits for can fail it: a guess need not have been read at all.
void ExpertSlots::Fail(Slot slot, ExpertFailure failure) {
  SlotState& s = state(slot);
  if (s.holder == Holder::kBatch) {
    batch_->items[s.item].phase = Phase::kFailed;
    --batch_->num_reading;
    if (!batch_->failure) batch_->failure = std::move(failure);
  }
  if (s.holder == Holder::kHint) std::erase(hint_.slots, slot);
  if (s.origin == Origin::kWarm) --num_warming_;
  s.holder = Holder::kNone;
  s.is_reading = false;
  s.is_unused_guess = false;
  --num_reading_;
  ++num_events_;
  Forget(slot);
}

void ExpertSlots::Forget(Slot slot) {
  int64_t& layer = state(slot).layer;
  --num_in_slots_[static_cast<size_t>(layer)];
  layer = -1;
  table_.Forget(slot);
}

// ---- the rest ----

void ExpertSlots::Stop() {
  const std::lock_guard talk(queue_mu_);
  std::vector<Slot> reading;
  {
    const std::lock_guard lock(mu_);
    stopped_ = true;
    hint_ = {};
    if (batch_) batch_->waiting.clear();
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].is_reading) reading.push_back(static_cast<Slot>(slot));
    }
  }
  CancelReads(reading);
  std::unique_lock lock(mu_);
  progress_.notify_all();
  progress_.wait(lock, [&] { return num_reading_ == 0; });
}

std::vector<ExpertKey> ExpertSlots::Hottest(size_t count) const {
  const std::lock_guard lock(mu_);
  return heat_.Hottest(count);
}

std::string ExpertSlots::SerializeHeat() const {
  const std::lock_guard lock(mu_);
  return num_batches_ == 0 ? std::string() : heat_.Serialize();
}

ExpertStoreCounters ExpertSlots::counters() const {
  const std::lock_guard lock(mu_);
  return counters_;
}

std::vector<LayerExpertCounters> ExpertSlots::layer_counters() const {
  const std::lock_guard lock(mu_);
  std::vector<LayerExpertCounters> counters = layer_counters_;
  for (size_t layer = 0; layer < counters.size(); ++layer) {
    counters[layer].hints_on = max_ahead_ > 0 && gauges_[layer].on();
  }
  return counters;
}

}  // namespace deltafin
