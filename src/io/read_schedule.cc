#include "io/read_schedule.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/format.h"
#include "base/seconds_since.h"
#include "io/read_loop.h"

namespace deltafin {
namespace {

uint64_t RoundDown(uint64_t value) { return value / kReadAlignment * kReadAlignment; }
uint64_t RoundUp(uint64_t value) { return RoundDown(value + kReadAlignment - 1); }

}  // namespace

ReadSchedule::ReadSchedule(const ReadQueueOptions& options)
    : split_bytes_(RoundDown(std::min<uint64_t>(options.split_bytes, kMaxBytesPerCall))),
      max_ahead_(std::max(1, options.depth / 2)) {
  DF_CHECK(options.depth >= 1 && split_bytes_ >= kReadAlignment);
}

void ReadSchedule::Add(const ReadRequest& request) {
  DF_CHECK(request.file != nullptr && request.listener != nullptr && request.buffer != nullptr);
  DF_CHECK(reinterpret_cast<uintptr_t>(request.buffer) % kReadAlignment == 0);
  // An offset comes from a header that was checked against the file's size.
  constexpr uint64_t kMaxOffset = std::numeric_limits<int64_t>::max() - kReadAlignment;
  DF_CHECK(request.bytes >= 1 && request.bytes <= kMaxOffset);
  DF_CHECK(request.offset <= kMaxOffset - request.bytes);
  auto job = std::make_shared<ReadJob>();
  job->request = request;
  job->next = RoundDown(request.offset);
  job->end = RoundUp(request.offset + request.bytes);
  WaitingOf(request.priority).push_back(std::move(job));
}

ReadSchedule::Waiting::iterator ReadSchedule::Find(Waiting& waiting, ReadListener* listener,
                                                   uint64_t tag) {
  return std::find_if(waiting.begin(), waiting.end(), [&](const std::shared_ptr<ReadJob>& job) {
    return job->request.listener == listener && job->request.tag == tag;
  });
}

bool ReadSchedule::Cancel(ReadListener* listener, uint64_t tag) {
  for (Waiting& waiting : waiting_) {
    const auto job = Find(waiting, listener, tag);
    if (job == waiting.end()) continue;
    if ((*job)->next != RoundDown((*job)->request.offset)) return false;
    waiting.erase(job);
    return true;
  }
  return false;
}

void ReadSchedule::Promote(ReadListener* listener, uint64_t tag) {
  for (const ReadPriority priority : {ReadPriority::kSoon, ReadPriority::kAhead}) {
    Waiting& waiting = WaitingOf(priority);
    const auto job = Find(waiting, listener, tag);
    if (job == waiting.end()) continue;
    WaitingOf(ReadPriority::kDemand).push_back(std::move(*job));
    waiting.erase(job);
    return;
  }
}

std::optional<ReadPiece> ReadSchedule::Next() {
  const auto first = std::find_if(waiting_.begin(), waiting_.end(),
                                  [](const Waiting& waiting) { return !waiting.empty(); });
  if (first == waiting_.end()) return std::nullopt;
  Waiting& waiting = *first;
  const bool is_ahead = &waiting == &WaitingOf(ReadPriority::kAhead);
  if (is_ahead && ahead_in_flight_ >= max_ahead_) return std::nullopt;
  const std::shared_ptr<ReadJob> job = waiting.front();
  const ReadRequest& request = job->request;
  ReadPiece piece;
  piece.job = job;
  piece.is_ahead = is_ahead;
  piece.offset = job->next;
  const uint64_t end = std::min(job->end, piece.offset + split_bytes_);
  piece.dst = {request.buffer + (piece.offset - RoundDown(request.offset)), end - piece.offset};
  piece.skip = std::max(request.offset, piece.offset) - piece.offset;
  piece.needed = std::min(request.offset + request.bytes, end) - piece.offset;
  job->next = end;
  ++job->in_flight;
  ahead_in_flight_ += is_ahead;
  if (in_flight_++ == 0) busy_since_ = std::chrono::steady_clock::now();
  if (end == job->end) waiting.pop_front();
  return piece;
}

bool ReadSchedule::Finish(const ReadPiece& piece, std::exception_ptr error) {
  ReadJob& job = *piece.job;
  --job.in_flight;
  ahead_in_flight_ -= piece.is_ahead;
  if (--in_flight_ == 0) counters_.busy_seconds += SecondsSince(busy_since_);
  if (error == nullptr) counters_.bytes += piece.needed - piece.skip;
  if (error != nullptr && job.error == nullptr) job.error = std::move(error);
  if (job.error != nullptr && job.next < job.end) {
    job.next = job.end;
    for (Waiting& waiting : waiting_) std::erase(waiting, piece.job);
  }
  return job.in_flight == 0 && job.next == job.end;
}

ReadCounters ReadSchedule::counters() const {
  ReadCounters counters = counters_;
  if (in_flight_ > 0) counters.busy_seconds += SecondsSince(busy_since_);
  return counters;
}

void Tell(const ReadJob& job) noexcept {
  const ReadRequest& r = job.request;
  if (job.error != nullptr) {
    r.listener->OnReadFailed(r.tag, job.error);
  } else {
    r.listener->OnRead(r.tag, {r.buffer + r.offset % kReadAlignment, r.bytes});
  }
}

ReadMode ModeChooser::ModeFor(const ReadableFile& file) {
  if (mode_ == ReadMode::kDirect && file.Descriptor(ReadMode::kDirect) < 0 &&
      file.Descriptor(ReadMode::kBuffered) >= 0) {
    Refused(file);
    return ReadMode::kBuffered;
  }
  return mode_;
}

void ModeChooser::Refused(const ReadableFile& file) {
  {
    const std::lock_guard lock(mutex_);
    if (!told_.insert(file.path()).second) return;
  }
  if (on_notice_) {
    on_notice_(format("{}: its file system refuses direct reads; it is read through the page cache",
                      file.path()));
  }
}

void ReadPieceNow(const ReadPiece& piece, ReadMode mode) {
  if (mode == ReadMode::kDirect) {
    piece.file().ReadDirect(piece.offset, piece.dst, piece.needed);
  } else {
    piece.file().ReadAt(piece.offset + piece.skip,
                        piece.dst.subspan(piece.skip, piece.needed - piece.skip));
  }
}

}  // namespace deltafin
