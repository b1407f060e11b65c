#include "device/vulkan/vulkan_device.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/format.h"
#include "device/vulkan/lane_layout.h"

namespace deltafin {
namespace {

constexpr uint64_t kToGpuChunk = uint64_t{16} << 20;
constexpr uint64_t kFromGpuChunk = uint64_t{16} << 20;
constexpr uint64_t kScratchChunk = uint64_t{32} << 20;
constexpr uint64_t kVectorChunk = uint64_t{1} << 20;
constexpr uint64_t kHeapChunk = uint64_t{64} << 20;
// So much is settled before more is recorded.
constexpr uint64_t kMostResultBytes = uint64_t{256} << 20;
// So much work is handed over while the rest is recorded, where the GPU has nothing to do; it takes
// a new submission 11 to 20 us to begin (H200).
constexpr uint64_t kIdleKickBytes = uint64_t{24} << 20;
// And so much in any case.
constexpr uint64_t kKickBytes = uint64_t{1} << 30;
// Of host memory that holds what is on its way to the GPU, before it is used again.
constexpr uint64_t kMostUploadBytes = uint64_t{64} << 20;
// Pieces of results that threads copy.
constexpr int64_t kCopyBytes = int64_t{1} << 20;

}  // namespace

VulkanDevice::VulkanDevice(Gpu& gpu, std::unique_ptr<Device> host, ThreadPool& pool,
                           VulkanDeviceOptions options)
    : gpu_(gpu),
      host_(std::move(host)),
      pool_(pool),
      on_notice_(std::move(options.on_notice)),
      flushes_subnormals_(options.flushes_subnormals),
      has_operators_(options.has_operators),
      staging_(gpu, pool),
      spine_(gpu, staging_, options.spine_bytes),
      experts_(gpu, staging_, options.expert_bytes),
      slots_(gpu),
      to_gpu_(gpu, MemoryUse::kToGpu, kToGpuChunk),
      from_gpu_(gpu, MemoryUse::kFromGpu, kFromGpuChunk),
      scratch_(gpu, MemoryUse::kScratch, kScratchChunk),
      vectors_(gpu, MemoryUse::kScratch, kVectorChunk),
      heap_(gpu, kHeapChunk),
      most_journal_bytes_(options.journal_bytes),
      span_bytes_(options.span_bytes) {}

VulkanDevice::~VulkanDevice() {
  expert_values_.reset();
  gpu_.WaitForAll();
}

std::string VulkanDevice::Describe() const {
  return format("gpu {} ({}) and {}", gpu_.info().name,
                is_lost_ ? "lost" : GpuKindName(gpu_.info().kind), host_->Describe());
}

bool VulkanDevice::Holds(uint64_t id) const {
  return !is_lost_ && (IsExpertId(id) ? experts_ : spine_).Find(id) != nullptr;
}

// ---- what is recorded ----

bool VulkanDevice::IsThere(const Operands& reads) const {
  return has_operators_ && !is_lost_ &&
         std::any_of(reads.begin(), reads.end(), [this](const Rows& rows) {
           return pending_.Overlaps(rows.begin(), rows.end());
         });
}

bool VulkanDevice::OnGpu(const Operands& reads, const Operands& writes,
                         const std::function<void()>& record, std::function<void()> again) {
  return OnGpuKeeping(reads, writes, {}, record, std::move(again));
}

bool VulkanDevice::OnGpuKeeping(const Operands& reads, const Operands& writes, KeptStep step,
                                const std::function<void()>& record, std::function<void()> again) {
  if (is_lost_) return false;
  const auto is_kept = [this](const Rows& rows) {
    return kept_.Overlaps(rows.begin(), rows.end());
  };
  Operands all = writes;
  if (step.write.data != nullptr) all.push_back(step.write);
  // What was written earlier comes to the host when it waits; then so does this.
  const bool stays = step.again && !results_.Overlaps(step.write.begin(), step.write.end());
  const Operands& ordinary = stays ? writes : all;
  if (std::any_of(ordinary.begin(), ordinary.end(), is_kept)) Checkpoint();
  if (IsWorthAKick()) TryKick();
  if (is_lost_) return false;
  try {
    const bool more_columns = Prepare(reads, all);
    if (is_lost_) return false;
    if (stays) {
      for (const Rows& input : step.inputs) {
        step.staged.push_back(from_gpu_.Take(input.end() - input.begin()));
      }
    }
    record();
    log_.push_back(std::move(again));
    // Barriers within what was recorded do not part it from what comes next.
    for (const Rows& rows : reads) {
      const DeviceRange range = RangeOf(rows);
      read_.Add(range.begin, range.begin + range.bytes);
      pending_reads_.Add(rows.begin(), rows.end());
    }
    for (const Rows& rows : all) {
      const DeviceRange range = RangeOf(rows);
      written_.Add(range.begin, range.begin + range.bytes);
    }
    Wrote(ordinary, more_columns);
    if (stays) WroteKept(std::move(step));
  } catch (const Error& error) {
    if (is_lost_) throw;  // weights could not be read again
    lacked_memory_ = true;
    if (error.code() != ErrorCode::kOutOfMemory) Lose(error.what());
    return false;
  }
  return true;
}

void VulkanDevice::OnHost(const Operands& reads, const Operands& writes,
                          const std::function<void()>& run) {
  const auto is_kept = [this](const Rows& rows) {
    return kept_.Overlaps(rows.begin(), rows.end());
  };
  const auto waits_for = [this](const Rows& rows) {
    return pending_.Overlaps(rows.begin(), rows.end());
  };
  const auto is_needed = [this](const Rows& rows) {
    return pending_reads_.Overlaps(rows.begin(), rows.end()) ||
           discarded_.Overlaps(rows.begin(), rows.end());
  };
  if (std::any_of(reads.begin(), reads.end(), is_kept) ||
      std::any_of(writes.begin(), writes.end(), is_kept)) {
    Checkpoint();
  } else if (std::any_of(reads.begin(), reads.end(), waits_for) ||
             std::any_of(writes.begin(), writes.end(), waits_for) ||
             std::any_of(writes.begin(), writes.end(), is_needed)) {
    Settle();
  } else {
    TryKick();  // the GPU computes meanwhile
  }
  CheckComputed(reads);
  run();
  for (const Rows& rows : writes) Changed(rows);
}

void VulkanDevice::Operator(const Operands& reads, const Rows& write,
                            const std::function<void()>& record, const std::function<void()>& run) {
  if (IsThere(reads) && OnGpu(reads, {write}, record, run)) return;
  OnHost(reads, {write}, run);
}

bool VulkanDevice::Prepare(const Operands& reads, const Operands& writes) {
  if (results_.TotalBytes() >= kMostResultBytes || scratch_.used_bytes() >= kMostGpuScratchBytes)
    Settle();
  const bool more_columns = writes.size() == 1 && columns_ && !writes[0].is_whole() &&
                            writes[0].data == columns_->data + columns_->width &&
                            writes[0].n == columns_->n && writes[0].stride == columns_->stride &&
                            columns_->width + writes[0].width <= columns_->stride;
  if (!more_columns) CloseColumns();
  const auto is_valid = [this](const Rows& rows) {
    return valid_.Contains(rows.begin(), rows.end());
  };
  for (const Rows& rows : reads) {
    // Some of it is there and some of it is not.
    if (is_valid(rows) || !pending_.Overlaps(rows.begin(), rows.end())) continue;
    if (kept_.Overlaps(rows.begin(), rows.end())) {
      Checkpoint();
    } else {
      Settle();
    }
  }
  if (is_lost_) return false;
  is_settled_ = false;
  for (const Rows& rows : reads) {
    if (!is_valid(rows)) Upload(rows);
  }
  std::vector<DeviceRange> read_ranges;
  std::vector<DeviceRange> written_ranges;
  for (const Rows& rows : reads) read_ranges.push_back(RangeOf(rows));
  for (const Rows& rows : writes) written_ranges.push_back(RangeOf(rows));
  Order(read_ranges, written_ranges, more_columns && columns_);
  return more_columns && columns_;
}

void VulkanDevice::Wrote(const Operands& writes, bool more_columns) {
  for (const Rows& rows : writes) {
    pending_.Add(rows.begin(), rows.end());
    DropCopies(rows);
    if (rows.is_whole()) {
      valid_.Add(rows.begin(), rows.end());
      results_.Add(rows.begin(), rows.end());
      continue;
    }
    if (more_columns) {
      columns_->width += rows.width;
    } else {
      CloseColumns();
      columns_ = rows;
    }
    if (columns_->width == columns_->stride) CloseColumns();
  }
}

void VulkanDevice::CloseColumns() {
  if (!columns_) return;
  const Rows rows = *columns_;
  columns_.reset();
  const int64_t n = rows.is_whole() ? 1 : rows.n;
  const int64_t width = rows.is_whole() ? rows.n * rows.width : rows.width;
  for (int64_t i = 0; i < n; ++i) {
    const Rows row = Whole(rows.data + i * rows.stride, width);
    valid_.Add(row.begin(), row.end());
    results_.Add(row.begin(), row.end());
  }
}

void VulkanDevice::DropCopies(const Rows& rows) {
  const auto meets = [&](const Rows& other) {
    return other.begin() < rows.end() && rows.begin() < other.end();
  };
  std::erase_if(inputs_, [&](const Input& input) { return meets(input.x); });
  if (experts_input_ && meets(experts_input_->what)) experts_input_.reset();
  if (picks_ && meets(picks_->what)) picks_.reset();
}

void VulkanDevice::Changed(const Rows& rows) {
  checked_x_ = nullptr;
  DropCopies(rows);
  for (ByteSet* set : {&valid_, &never_computed_}) {
    if (!set->Overlaps(rows.begin(), rows.end())) continue;
    if (rows.is_whole()) {
      set->Remove(rows.begin(), rows.end());
      continue;
    }
    for (int64_t i = 0; i < rows.n; ++i) {
      const Rows row = Whole(rows.data + i * rows.stride, rows.width);
      set->Remove(row.begin(), row.end());
    }
  }
}

const GpuBuffer& VulkanDevice::ShadowOf(const Rows& rows, uint64_t* offset) {
  auto found = allocations_.upper_bound(rows.begin());
  DF_CHECK(found != allocations_.begin());
  --found;
  Allocation& allocation = found->second;
  DF_CHECK(rows.end() <= found->first + allocation.bytes);
  if (!allocation.shadow.is_there()) allocation.shadow = heap_.Take(allocation.bytes);
  *offset = allocation.shadow.offset() + rows.begin() - found->first;
  return allocation.shadow.buffer();
}

VkDeviceAddress VulkanDevice::AddressOf(const Rows& rows) {
  uint64_t offset = 0;
  const GpuBuffer& shadow = ShadowOf(rows, &offset);
  return shadow.address() + offset;
}

VulkanDevice::DeviceRange VulkanDevice::RangeOf(const Rows& rows) {
  return {AddressOf(rows), rows.end() - rows.begin()};
}

void VulkanDevice::Upload(const Rows& rows) {
  uint64_t offset = 0;
  const GpuBuffer& shadow = ShadowOf(rows, &offset);
  const uint64_t bytes = rows.end() - rows.begin();
  const VkDeviceAddress to = AddressOf(rows);
  const auto* from = reinterpret_cast<const std::byte*>(rows.data);
  for (uint64_t at = 0; at < bytes; at += kToGpuChunk, from += kToGpuChunk) {
    const uint64_t some = std::min(kToGpuChunk, bytes - at);
    if (to_gpu_.used_bytes() + some > kMostUploadBytes) {
      Kick();
      gpu_.Wait(last_ticket_);
      to_gpu_.Reset();
    }
    const GpuArena::Piece piece = to_gpu_.Take(some);
    pool_.ParallelFor(static_cast<int64_t>(some), kCopyBytes, [&](int64_t begin, int64_t end) {
      std::memcpy(piece.host() + begin, from + begin, static_cast<size_t>(end - begin));
    });
    const DeviceRange range{to + at, some};
    Order({}, {&range, 1});
    Commands().Copy(shadow, offset + at, *piece.buffer, piece.offset, some);
  }
  valid_.Add(rows.begin(), rows.end());
}

VulkanDevice::DeviceRange VulkanDevice::Constant(const void* from, size_t bytes) {
  const GpuArena::Piece piece = to_gpu_.Take(bytes);
  std::memcpy(piece.host(), from, bytes);
  if (piece.buffer->is_local()) return {piece.address(), bytes};
  const GpuArena::Piece copy = scratch_.Take(bytes);
  const DeviceRange range{copy.address(), bytes};
  Order({}, {&range, 1});
  Commands().Copy(*copy.buffer, copy.offset, *piece.buffer, piece.offset, bytes);
  return range;
}

VulkanDevice::HostVector VulkanDevice::VectorOf(const float* from, int64_t count) {
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  const uint64_t begin = reinterpret_cast<uintptr_t>(from);
  if (constants_.Contains(begin, begin + bytes)) return {from, from, nullptr, bytes};
  const auto known = known_vectors_.find(from);
  if (known != known_vectors_.end() && known->second.owner &&
      known->second.owner->size() == static_cast<size_t>(count) &&
      std::memcmp(known->second.owner->data(), from, bytes) == 0) {
    return {from, known->second.owner->data(), known->second.owner, bytes};
  }
  const auto copy = std::make_shared<const std::vector<float>>(from, from + count);
  return {from, copy->data(), copy, bytes};
}

VkDeviceAddress VulkanDevice::AddressOf(const HostVector& vector) {
  const auto [known, is_new] = known_vectors_.try_emplace(vector.from);
  KnownVector& there = known->second;
  if (!is_new && there.owner == vector.owner && there.address != 0) return there.address;
  // One that changes is passed through; it would take more memory each time.
  if (!is_new || vectors_.used_bytes() >= kMostGpuVectorBytes) {
    if (is_new) known_vectors_.erase(known);
    const DeviceRange range = Constant(vector.values, vector.bytes);
    Order({&range, 1}, {});
    return range.begin;
  }
  try {
    const GpuArena::Piece staged = to_gpu_.Take(vector.bytes);
    std::memcpy(staged.host(), vector.values, vector.bytes);
    const GpuArena::Piece piece = vectors_.Take(vector.bytes);
    Commands().Copy(*piece.buffer, piece.offset, *staged.buffer, staged.offset, vector.bytes);
    Commands().Barrier();
    there = {vector.owner, piece.address()};
  } catch (...) {
    known_vectors_.erase(known);
    throw;
  }
  return there.address;
}

void VulkanDevice::SetConstant(std::span<const float> vectors) {
  const uint64_t begin = reinterpret_cast<uintptr_t>(vectors.data());
  constants_.Add(begin, begin + vectors.size_bytes());
}

// What it promised to stay goes with it.
void VulkanDevice::SetOrigin(WeightOrigin* origin) {
  if (origin == nullptr) {
    try {
      Settle();
    } catch (const Error&) {
      Forget();
    }
    constants_.Clear();
    known_vectors_.clear();
  }
  origin_ = origin;
}

void VulkanDevice::Order(std::span<const DeviceRange> reads, std::span<const DeviceRange> writes,
                         bool writes_are_apart) {
  const auto was_written = [this](const DeviceRange& range) {
    return written_.Overlaps(range.begin, range.begin + range.bytes);
  };
  const auto was_read = [this](const DeviceRange& range) {
    return read_.Overlaps(range.begin, range.begin + range.bytes);
  };
  if (std::any_of(reads.begin(), reads.end(), was_written) ||
      std::any_of(writes.begin(), writes.end(), was_read) ||
      (!writes_are_apart && std::any_of(writes.begin(), writes.end(), was_written))) {
    Commands().Barrier();
    read_.Clear();
    written_.Clear();
  }
  for (const DeviceRange& range : reads) read_.Add(range.begin, range.begin + range.bytes);
  for (const DeviceRange& range : writes) written_.Add(range.begin, range.begin + range.bytes);
}

GpuCommands& VulkanDevice::Commands() {
  is_settled_ = false;
  if (!commands_) commands_ = gpu_.Begin();
  RecordProduct();
  return *commands_;
}

bool VulkanDevice::IsWorthAKick() {
  if (!commands_ || commands_bytes_ < kIdleKickBytes) return false;
  try {
    return commands_bytes_ >= kKickBytes || gpu_.Progress() >= last_ticket_;
  } catch (const Error& error) {
    Lose(error.what());
    return false;
  }
}

void VulkanDevice::Kick() {
  if (!commands_) return;
  RecordProduct();
  last_ticket_ = gpu_.Submit(*commands_);
  commands_.reset();
  commands_bytes_ = 0;
  read_.Clear();
  written_.Clear();
  for (auto step = window_steps_.rbegin(); step != window_steps_.rend(); ++step) {
    if (step->ticket != 0) break;
    step->ticket = last_ticket_;
  }
}

void VulkanDevice::KickAndWait() {
  Kick();
  ++num_waits_;
  gpu_.Wait(last_ticket_);
}

void VulkanDevice::TryKick() {
  try {
    Kick();
  } catch (const Error& error) {
    Lose(error.what());
  }
}

void VulkanDevice::Settle() {
  SettleResults();
  if (journal_bytes_ > most_journal_bytes_) {
    while (!is_lost_ && !kept_.IsEmpty()) BringSomeKept();
  }
}

void VulkanDevice::SettleResults() {
  checked_x_ = nullptr;
  if (is_settled_) return;
  struct Result {
    uint64_t to = 0;
    uint64_t bytes = 0;
    const std::byte* from = nullptr;
  };
  std::vector<Result> results;
  try {
    CloseColumns();
    if (!results_.IsEmpty()) Commands().Barrier();
    for (const auto& [begin, end] : results_.ranges()) {
      // A range may go from one allocation to the next.
      for (uint64_t at = begin; at < end;) {
        const auto allocation = std::prev(allocations_.upper_bound(at));
        const uint64_t last = std::min(end, allocation->first + allocation->second.bytes);
        const GpuArena::Piece piece = from_gpu_.Take(last - at);
        const GpuHeap::Piece& shadow = allocation->second.shadow;
        Commands().Copy(*piece.buffer, piece.offset, shadow.buffer(),
                        shadow.offset() + at - allocation->first, last - at);
        results.push_back({at, last - at, piece.host()});
        at = last;
      }
    }
    KickAndWait();
  } catch (const Error& error) {
    Lose(error.what());
    return;
  }
  for (const Result& result : results) CopyToHost(result.to, result.from, result.bytes);
  CollectInputs(last_ticket_);
  for (KeptStep& step : window_steps_) {
    journal_bytes_ += step.values.size() * sizeof(float);
    journal_.push_back(std::move(step));
  }
  Forget();
}

void VulkanDevice::CopyToHost(uint64_t to, const std::byte* from, uint64_t bytes) {
  auto* const target = reinterpret_cast<std::byte*>(to);
  pool_.ParallelFor(static_cast<int64_t>(bytes), kCopyBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(target + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

void VulkanDevice::Forget() {
  is_settled_ = true;
  log_.clear();
  reads_slots_ = false;
  expert_calls_.clear();
  window_steps_.clear();
  pending_ = kept_;
  pending_reads_.Clear();
  results_.Clear();
  discarded_.Clear();
  columns_.reset();
  inputs_.clear();
  experts_input_.reset();
  picks_.reset();
  apart_bytes_ = 0;
  read_.Clear();
  written_.Clear();
  checked_x_ = nullptr;
  to_gpu_.Reset();
  from_gpu_.Reset();
  scratch_.Reset();
}

void VulkanDevice::Lose(const std::string& why) {
  is_lost_ = true;
  why_lost_ = why;
  commands_.reset();
  next_product_.reset();
  spine_.Forget();
  experts_.Forget();
  valid_.Clear();
  const std::vector<KeptStep> journal = std::move(journal_);
  journal_.clear();
  journal_bytes_ = 0;
  const std::vector<std::function<void()>> log = std::move(log_);
  const auto expert_calls = std::move(expert_calls_);
  never_computed_ = std::move(pending_);  // until they are
  kept_.Clear();
  Forget();
  if (on_notice_) {
    on_notice_(format("{}; the CPU computes what it held from now on, with the same results", why));
  }
  try {
    for (const KeptStep& step : journal) step.again(step.values.data());
    for (const std::function<void()>& again : log) again();
  } catch (const std::exception& error) {
    why_never_ = error.what();
    throw;
  }
  never_computed_.Clear();
}

void VulkanDevice::CheckComputed(const Operands& reads) const {
  for (const Rows& rows : reads) {
    if (!never_computed_.Overlaps(rows.begin(), rows.end())) continue;
    throw Error(ErrorCode::kIo,
                format("the GPU {} was lost, and what it was computing could not be computed "
                       "again: {}",
                       gpu_.info().name, why_never_));
  }
}

Matrix VulkanDevice::ReadAgain(const Matrix& w, std::vector<std::byte>& bytes) const {
  if (w.data != nullptr) return w;
  WeightOrigin* const origin = IsExpertId(w.id) ? expert_origin_ : origin_;
  if (origin == nullptr) {
    throw Error(ErrorCode::kIo, format("the GPU {} was lost, and with it weights that nothing else "
                                       "holds; start again",
                                       gpu_.info().name));
  }
  return origin->ReadAgain(w.id, bytes);
}

// ---- memory ----

void* VulkanDevice::Allocate(size_t bytes) {
  void* const address = host_->Allocate(bytes);
  const uint64_t rounded = std::max<uint64_t>(bytes, 1);
  allocations_[reinterpret_cast<uintptr_t>(address)] = {rounded, {}};
  return address;
}

void VulkanDevice::Free(void* address) noexcept {
  if (address == nullptr) return;
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(address));
  DF_CHECK(found != allocations_.end());
  const uint64_t begin = found->first;
  const uint64_t end = begin + found->second.bytes;
  // After an error a result may still be under way to this memory.
  try {
    Settle();
    if (!DropKept(begin, end)) Checkpoint();
  } catch (const std::exception&) {
    Forget();
  }
  valid_.Remove(begin, end);
  never_computed_.Remove(begin, end);
  if (is_lost_) gpu_.WaitForAll();  // it may still be at work
  heap_.Give(found->second.shadow);
  allocations_.erase(found);
  host_->Free(address);
}

void VulkanDevice::ToHost(void* host_dst, const void* src, size_t bytes) {
  const uint64_t begin = reinterpret_cast<uintptr_t>(src);
  if (pending_.Overlaps(begin, begin + bytes)) {
    constexpr size_t kFloat = sizeof(float);
    const Rows whole = Whole(static_cast<const float*>(src), static_cast<int64_t>(bytes / kFloat));
    if (bytes % kFloat == 0 && Fetch(whole, host_dst)) return;
    if (kept_.Overlaps(begin, begin + bytes)) {
      Checkpoint();
    } else {
      Settle();
    }
  }
  CheckComputed({Whole(static_cast<const float*>(src), static_cast<int64_t>((bytes + 3) / 4))});
  host_->ToHost(host_dst, src, bytes);
}

void VulkanDevice::ToDevice(void* dst, const void* host_src, size_t bytes) {
  const uint64_t begin = reinterpret_cast<uintptr_t>(dst);
  if (pending_.Overlaps(begin, begin + bytes) || pending_reads_.Overlaps(begin, begin + bytes) ||
      discarded_.Overlaps(begin, begin + bytes)) {
    Settle();
    if (!DropKept(begin, begin + bytes)) Checkpoint();
  }
  host_->ToDevice(dst, host_src, bytes);
  Changed(Whole(static_cast<const float*>(dst), static_cast<int64_t>((bytes + 3) / 4)));
}

void VulkanDevice::Discard(const void* begin, size_t bytes) noexcept {
  const uint64_t from = reinterpret_cast<uintptr_t>(begin);
  const uint64_t to = from + bytes;
  if (bytes == 0 || is_settled_ || kept_.Overlaps(from, to)) return;
  CloseColumns();
  pending_.Remove(from, to);
  results_.Remove(from, to);
  valid_.Remove(from, to);
  discarded_.Add(from, to);
}

void VulkanDevice::Synchronize() {
  // Nothing that is under way needs the weights in host memory, if they can be read again and are
  // not read there.
  const bool can_read = expert_calls_.empty() || expert_origin_ != nullptr;
  if (!can_read || !has_operators_ || reads_slots_) {
    Settle();
    return;
  }
  for (const std::shared_ptr<ExpertCall>& call : expert_calls_) {
    for (ExpertTask& task : call->tasks) {
      for (Matrix* w : {&task.weights.w1, &task.weights.w3, &task.weights.w2}) w->data = nullptr;
    }
  }
  expert_calls_.clear();
}

}  // namespace deltafin
