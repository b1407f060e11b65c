#include "model/cache_spill.h"

#include <algorithm>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"
#include "model/sequence_state.h"

namespace deltafin {
namespace {

static_assert(kProvidedTokens % kCachePageTokens == 0);
constexpr int64_t kUnitPages = kProvidedTokens / kCachePageTokens;

uint64_t RoundedToReads(uint64_t bytes) {
  return (bytes + kReadAlignment - 1) / kReadAlignment * kReadAlignment;
}

// A pass of n tokens begins anywhere in a page.
int64_t OpenPages(const CacheSpillOptions& options) {
  return (options.max_pass_tokens + kCachePageTokens - 2) / kCachePageTokens + 1;
}

[[noreturn]] void Fail(ErrorCode code, const std::string& what) {
  throw Error(code, format("the part of the latent cache that is not in RAM: {}; {}", what,
                           code == ErrorCode::kNoSpace
                               ? "free some space there, or pass a larger --context-in-ram or "
                                 "another --spill-dir"
                               : "check the disk, or pass another --spill-dir"));
}

}  // namespace

// Enough for the threads to share out, and as many on their way meanwhile.
int64_t CacheSpill::WindowPages(const CacheSpillOptions& options) {
  return kUnitPages * std::clamp((options.threads + 3) / 4, 2, 16);
}

uint64_t CacheSpill::PageBytes(const ModelConfig& config, CacheFormat format) {
  const int64_t value_bytes = format == CacheFormat::kBf16 ? 2 : 4;
  return static_cast<uint64_t>(kCachePageTokens * value_bytes *
                               (config.kv_lora_rank + config.qk_rope_head_dim));
}

uint64_t CacheSpill::Bytes(const ModelConfig& config, CacheFormat format,
                           const CacheSpillOptions& options) {
  const uint64_t page = PageBytes(config, format);
  return static_cast<uint64_t>(OpenPages(options)) * page +
         static_cast<uint64_t>(2 * WindowPages(options)) * ReadBufferBytes(page);
}

CacheSpill::CacheSpill(const ModelConfig& config, CacheFormat format, Device& device,
                       ReadQueue& queue, std::unique_ptr<ScratchFile> file,
                       const CacheSpillOptions& options, PhaseClock* clock)
    : queue_(queue),
      file_(std::move(file)),
      options_(options),
      clock_(clock),
      page_bytes_(PageBytes(config, format)),
      slot_bytes_(RoundedToReads(page_bytes_)),
      max_tokens_(WindowPages(options) * kCachePageTokens),
      place_bytes_(ReadBufferBytes(page_bytes_)),
      ring_(static_cast<size_t>(2 * WindowPages(options)) * place_bytes_),
      places_(static_cast<size_t>(2 * WindowPages(options))) {
  if (!device.ReadsHostPages()) {
    throw Error(ErrorCode::kUnsupported,
                deltafin::format("--context-in-ram: {} cannot use pages that are read from a file",
                                 device.Describe()));
  }
  for (int64_t i = 0; i < OpenPages(options); ++i) open_pages_.emplace_back(device, page_bytes_);
  AdviseHugePages(ring_.data(), ring_.size());
}

CacheSpill::~CacheSpill() { Drain(); }

int64_t CacheSpill::TakeSlot() {
  if (free_slots_.empty()) return num_slots_++;
  const int64_t slot = free_slots_.top();
  free_slots_.pop();
  return slot;
}

void CacheSpill::FreeSlots(std::vector<int64_t> slots) noexcept {
  ForgetAhead(slots);
  std::sort(slots.begin(), slots.end());
  for (size_t i = 0; i < slots.size();) {  // runs of neighbours together
    size_t end = i + 1;
    while (end < slots.size() && slots[end] == slots[end - 1] + 1) ++end;
    file_->Discard(static_cast<uint64_t>(slots[i]) * slot_bytes_, (end - i) * slot_bytes_);
    i = end;
  }
  for (const int64_t slot : slots) free_slots_.push(slot);
}

void CacheSpill::Write(int64_t slot, const void* page) {
  ForgetAhead({&slot, 1});
  try {
    file_->WriteAt(static_cast<uint64_t>(slot) * slot_bytes_,
                   {static_cast<const std::byte*>(page), page_bytes_});
  } catch (const Error& error) {
    Fail(error.code(), error.what());
  }
}

void CacheSpill::Read(int64_t slot, std::span<std::byte> host_page) {
  const PhaseScope phase(clock_, Phase::kContextWait);
  try {
    file_->ReadAt(static_cast<uint64_t>(slot) * slot_bytes_, host_page);
  } catch (const Error& error) {
    Fail(error.code(), error.what());
  }
  bytes_read_.fetch_add(host_page.size(), std::memory_order_relaxed);
}

void CacheSpill::SetWalk(const Walk& walk) {
  walk_ = walk;
  num_loads_ = started_ = walks_begun_ = 0;
}

void CacheSpill::Begin(int64_t walks) {
  const int64_t pages = walk_.end - walk_.first;
  const auto room = std::ssize(places_);
  num_loads_ = pages <= room ? pages : pages * walks;
  started_ = TakeAhead();
  walks_begun_ = 0;
  Load(room);
}

// Starts the loads before `end` that have not been started.
void CacheSpill::Load(int64_t end) {
  end = std::min(end, num_loads_);
  if (started_ >= end) return;
  std::vector<ReadRequest> requests;
  for (; started_ < end; ++started_) {
    const int64_t page = started_ % (walk_.end - walk_.first);
    requests.push_back(
        LoadInto(started_ % std::ssize(places_), walk_.slots[page], ReadPriority::kDemand));
  }
  queue_.Submit(requests);
}

// The read that fills a place, to be submitted.
ReadRequest CacheSpill::LoadInto(int64_t place, int64_t slot, ReadPriority priority) {
  {
    const std::lock_guard lock(mutex_);
    places_[place] = {.busy = true, .error = {}};
  }
  return {.file = file_.get(),
          .offset = static_cast<uint64_t>(slot) * slot_bytes_,
          .bytes = page_bytes_,
          .buffer = PlaceBytes(place),
          .priority = priority,
          .tag = static_cast<uint64_t>(place),
          .listener = this};
}

void CacheSpill::ReadAhead(std::span<const int64_t> slots) {
  Drain();
  slots = slots.first(std::min(slots.size(), places_.size()));
  ahead_.assign(slots.begin(), slots.end());
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < ahead_.size(); ++i) {
    requests.push_back(LoadInto(static_cast<int64_t>(i), ahead_[i], ReadPriority::kSoon));
  }
  queue_.Submit(requests);
}

// The number of this walk's first loads that are on their way or there; all other reads have ended.
int64_t CacheSpill::TakeAhead() {
  const std::vector<int64_t> ahead = std::exchange(ahead_, {});
  if (ahead.empty() || ahead.size() > walk_.slots.size() ||
      !std::equal(ahead.begin(), ahead.end(), walk_.slots.begin())) {
    Drain();
    return 0;
  }
  const auto has_failed = [&](size_t place) {
    const std::lock_guard lock(mutex_);
    return places_[place].error.has_value();
  };
  std::vector<ReadRequest> again;
  for (size_t i = 0; i < ahead.size(); ++i) {
    queue_.Promote(this, i);
    if (!has_failed(i)) continue;
    again.push_back(LoadInto(static_cast<int64_t>(i), ahead[i], ReadPriority::kDemand));
  }
  if (!again.empty()) queue_.Submit(again);
  return std::ssize(ahead);
}

// What was read ahead of these slots is theirs no longer.
void CacheSpill::ForgetAhead(std::span<const int64_t> slots) noexcept {
  if (std::find_first_of(ahead_.begin(), ahead_.end(), slots.begin(), slots.end()) !=
      ahead_.end()) {
    ahead_.clear();
  }
}

void CacheSpill::Provide(int64_t first, int64_t end) {
  if (first == 0) ++walks_begun_;
  const int64_t pages = walk_.end - walk_.first;
  const int64_t begin_page = std::max(first / kCachePageTokens, walk_.first);
  const int64_t end_page = std::min((end + kCachePageTokens - 1) / kCachePageTokens, walk_.end);
  if (begin_page >= end_page) return;
  const bool all_fit = pages <= std::ssize(places_);
  const int64_t before = all_fit ? 0 : (walks_begun_ - 1) * pages;
  // The places of everything before are free now.
  if (!all_fit) Load(before + begin_page - walk_.first + std::ssize(places_));
  for (int64_t page = begin_page; page < end_page; ++page) {
    walk_.pages[page] = WaitFor(before + page - walk_.first);
  }
}

std::byte* CacheSpill::WaitFor(int64_t load) {
  DF_CHECK(load < started_);
  const int64_t at = load % std::ssize(places_);
  const Place& place = places_[at];
  std::unique_lock lock(mutex_);
  if (place.busy) {
    const PhaseScope phase(clock_, Phase::kContextWait);
    changed_.wait(lock, [&] { return !place.busy; });
  }
  if (place.error) Fail(place.error->code, place.error->message);
  return PlaceBytes(at);  // slots begin where direct reads may: nothing lies before the page
}

// Until no read is under way: what follows uses the ring for something else.
void CacheSpill::Drain() noexcept {
  std::unique_lock lock(mutex_);
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].busy) continue;
    lock.unlock();
    const bool cancelled = queue_.Cancel(this, i);
    lock.lock();
    if (cancelled) places_[i].busy = false;
    changed_.wait(lock, [&] { return !places_[i].busy; });
  }
}

void CacheSpill::OnRead(uint64_t tag, std::span<const std::byte> data) noexcept {
  bytes_read_.fetch_add(data.size(), std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  places_[tag].busy = false;
  changed_.notify_all();
}

void CacheSpill::OnReadFailed(uint64_t tag, std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex_);
  places_[tag].busy = false;
  places_[tag].error = Capture(error);
  changed_.notify_all();
}

}  // namespace deltafin
