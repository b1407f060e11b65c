#include "hub/unit_fetcher.h"

#include <chrono>
#include <utility>

namespace deltafin {
namespace {

constexpr std::chrono::milliseconds kTick{100};
// Enough to keep every connection busy with neighbours that can be asked for as one, little enough
// to take no memory.
constexpr uint64_t kBytesAhead = uint64_t{128} << 20;
constexpr size_t kMinPiecesPerJob = 3;
constexpr size_t kMaxPieces = 4096;

}  // namespace

UnitFetcher::Outcome UnitFetcher::Run(std::vector<FetchPiece> pieces,
                                      const std::function<bool(const Status&)>& tick) {
  size_t next = 0;
  bool stopped = false;
  for (;;) {
    Refill(pieces, next);
    Status status;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kTick);
      if ((active_.empty() && next == pieces.size()) || disk_full_ || error_) break;
      status = status_;
    }
    stopped = !tick(status);
    if (stopped) break;
  }
  client_.Drop(this);
  try {
    behind_.Flush();
  } catch (...) {
    NoteError(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  if (error_) std::exchange(error_, std::nullopt)->Raise();
  if (std::exchange(disk_full_, false)) return Outcome::kDiskFull;
  return stopped ? Outcome::kStopped : Outcome::kDone;
}

uint64_t UnitFetcher::done_bytes() const {
  const std::lock_guard lock(mutex_);
  return status_.done_bytes;
}

void UnitFetcher::Refill(std::vector<FetchPiece>& pieces, size_t& next) {
  const size_t min_pieces = kMinPiecesPerJob * static_cast<size_t>(client_.options().jobs);
  std::vector<RangeRequest> requests;
  {
    const std::lock_guard lock(mutex_);
    if (disk_full_ || error_) return;
    while (next < pieces.size() && active_.size() < kMaxPieces &&
           (active_.size() < min_pieces || active_bytes_ < kBytesAhead)) {
      auto active = std::make_unique<Active>();
      active->piece = pieces[next++];
      const FetchPiece& piece = active->piece;
      const uint64_t tag = next_tag_++;
      requests.push_back({piece.shard->remote.name, piece.shard->remote.bytes, piece.range,
                          ReadPriority::kDemand, tag, this});
      active_bytes_ += piece.range.bytes;
      active_.emplace(tag, std::move(active));
    }
  }
  if (!requests.empty()) client_.Fetch(requests);
}

void UnitFetcher::OnRangeBytes(uint64_t tag, std::span<const std::byte> bytes) {
  Active* active = nullptr;
  {
    const std::lock_guard lock(mutex_);
    active = active_.at(tag).get();
    status_.shard = active->piece.shard;
    status_.layer = active->piece.layer;
    status_.done_bytes += bytes.size();
  }
  if (!active->writer) {
    active->writer.emplace(behind_, *active->piece.shard->presence, active->piece.range.offset);
  }
  active->writer->Write(bytes);
}

std::unique_ptr<UnitFetcher::Active> UnitFetcher::Take(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  const auto it = active_.find(tag);
  std::unique_ptr<Active> active = std::move(it->second);
  active_.erase(it);
  active_bytes_ -= active->piece.range.bytes;
  return active;
}

void UnitFetcher::NoteError(const std::exception_ptr& error) {
  CapturedError captured = Capture(error);
  if (captured.code == ErrorCode::kCancelled) return;
  const std::lock_guard lock(mutex_);
  if (captured.code == ErrorCode::kNoSpace) {
    disk_full_ = true;
  } else if (!error_) {
    error_ = std::move(captured);
  }
}

void UnitFetcher::OnRangeDone(uint64_t tag) noexcept {
  const std::unique_ptr<Active> active = Take(tag);
  if (active->writer) active->writer->Finish();
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void UnitFetcher::OnRangeFailed(uint64_t tag, std::exception_ptr error) noexcept {
  const std::unique_ptr<Active> active = Take(tag);
  NoteError(error);
  if (active->writer) active->writer->Finish();
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace deltafin
