#include "store/spine_stream.h"

#include <algorithm>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"

namespace deltafin {
namespace {

// Resident pieces need no ring, so this alone bounds how far they are read ahead of their first
// use: far enough to keep a disk busy, near enough that a pass that goes elsewhere wastes little.
constexpr uint64_t kResidentAheadBytes = uint64_t{256} << 20;

uint64_t TagOf(const void* flight) { return reinterpret_cast<uintptr_t>(flight); }

}  // namespace

SpineStream::SpineStream(SpinePieces pieces, std::vector<bool> resident, uint64_t ring_bytes,
                         ReadQueue& queue, PhaseClock* clock)
    : pieces_(std::move(pieces)),
      resident_(std::move(resident)),
      queue_(queue),
      clock_(clock),
      ring_memory_(ring_bytes),
      ring_(ring_bytes),
      resident_offset_(pieces_.size()),
      loaded_(pieces_.size()),
      held_(pieces_.size()),
      num_unloaded_(pieces_.size()) {
  DF_CHECK(resident_.size() == pieces_.size());
  bool streams_whole = false;
  uint64_t resident_bytes = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const uint64_t bytes = ReadBufferBytes(pieces_[i].bytes);
    if (resident_[i]) {
      resident_offset_[i] = resident_bytes;
      resident_bytes += bytes;
    } else if (pieces_.IsWhole(i)) {
      streams_whole = true;
    } else {
      DF_CHECK(bytes <= ring_bytes);
    }
  }
  resident_memory_ = PageBuffer(resident_bytes);  // takes RAM as it is filled
  if (streams_whole) whole_memory_ = PageBuffer(pieces_.WholeBytes());
  for (const PageBuffer* memory : {&ring_memory_, &resident_memory_, &whole_memory_}) {
    AdviseHugePages(memory->data(), memory->size());
  }
}

SpineStream::~SpineStream() {
  if (std::exchange(oldest_in_use_, false)) PopOldest();
  Drop(flights_.size());
}

void SpineStream::OnRead(uint64_t tag, std::span<const std::byte> data) noexcept {
  Flight& flight = *reinterpret_cast<Flight*>(static_cast<uintptr_t>(tag));
  const bool is_top = pieces_[flight.piece].layer + 1 == pieces_.num_layers();
  (is_top ? top_bytes_ : layer_bytes_).fetch_add(data.size(), std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  flight.data = data;
  flight.state = State::kReady;
  arrived_.notify_one();
}

void SpineStream::OnReadFailed(uint64_t tag, std::exception_ptr error) noexcept {
  Flight& flight = *reinterpret_cast<Flight*>(static_cast<uintptr_t>(tag));
  // What it says is copied, so that the exception itself stays with the thread of the queue.
  ErrorCode code = ErrorCode::kIo;
  std::string message;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    code = e.code();
    message = e.what();
  } catch (const std::exception& e) {
    message = e.what();
  }
  const std::lock_guard lock(mutex_);
  flight.error_code = code;
  flight.error = std::move(message);
  flight.state = State::kFailed;
  arrived_.notify_one();
}

void SpineStream::Seek(size_t i) {
  Free();
  if (num_unloaded_ == 0) return;
  while (IsLoaded(i)) i = Next(i);
  const auto it = std::find_if(flights_.begin(), flights_.end(),
                               [&](const Flight& flight) { return flight.piece == i; });
  if (it != flights_.end()) {
    Drop(static_cast<size_t>(it - flights_.begin()));
  } else {
    Drop(flights_.size());
    cursor_ = i;
  }
  Fill();
}

std::span<const std::byte> SpineStream::Get(size_t i) {
  Free();
  DF_CHECK(!held_[i]);
  if (IsLoaded(i)) return loaded_[i];
  if (whole_in_use_ == i) return whole_data_;
  // A read that was launched before anybody needed it, in an earlier pass perhaps, may fail or have
  // failed: the disk may be well again.
  const bool ahead = std::any_of(flights_.begin(), flights_.end(),
                                 [&](const Flight& flight) { return flight.piece == i; });
  Seek(i);
  // Another whole matrix than the one that is in use cannot be read: the forward pass has no layer
  // with two.
  DF_CHECK(!flights_.empty() && flights_.front().piece == i);
  WaitFor(flights_.front());
  if (ahead && flights_.front().state == State::kFailed) {
    Drop(flights_.size());
    cursor_ = i;
    Fill();
    DF_CHECK(!flights_.empty() && flights_.front().piece == i);
    WaitFor(flights_.front());
  }
  Flight& flight = flights_.front();
  if (flight.state == State::kFailed) {
    const Error error(flight.error_code, flight.error);
    PopOldest();
    throw error;
  }
  const std::span<const std::byte> data = flight.data;
  if (flight.in_ring) {
    oldest_in_use_ = true;
    return data;
  }
  if (!resident_[i]) {
    whole_in_use_ = i;
    whole_data_ = data;
  }
  PopOldest();
  Fill();
  return data;
}

bool SpineStream::IsThere(size_t i) {
  Free();
  if (IsLoaded(i) || whole_in_use_ == i) return true;
  Seek(i);
  const std::lock_guard lock(mutex_);
  return !flights_.empty() && flights_.front().state != State::kReading;
}

void SpineStream::Free() {
  if (!std::exchange(oldest_in_use_, false)) return;
  PopOldest();
  Fill();
}

void SpineStream::FreeWhole() {
  if (!whole_in_use_) return;
  whole_in_use_.reset();
  whole_is_taken_ = false;
  Fill();
}

void SpineStream::SetHeld(size_t i) {
  DF_CHECK(!resident_[i] && !pieces_.IsWhole(i) && !held_[i]);
  held_[i] = true;
  --num_unloaded_;
}

void SpineStream::DropHeld() {
  num_unloaded_ += static_cast<size_t>(std::count(held_.begin(), held_.end(), true));
  held_.assign(held_.size(), false);
}

void SpineStream::Fill() {
  std::vector<ReadRequest> requests;
  // So long as fewer pieces are under way than are missing, one that is missing is not under way.
  while (flights_.size() < num_unloaded_) {
    while (IsLoaded(cursor_)) cursor_ = Next(cursor_);
    std::byte* buffer = Claim(cursor_);
    if (buffer == nullptr) break;
    requests.push_back(Launch(cursor_, buffer));
    cursor_ = Next(cursor_);
  }
  if (!requests.empty()) queue_.Submit(requests);
}

ReadRequest SpineStream::Launch(size_t i, std::byte* buffer) {
  const SpinePiece& piece = pieces_[i];
  // The first one is what the forward pass waits for; the others can let experts go first.
  const ReadPriority priority = flights_.empty() ? ReadPriority::kDemand : ReadPriority::kSoon;
  Flight& flight = flights_.emplace_back();
  flight.piece = i;
  flight.in_ring = !resident_[i] && !pieces_.IsWhole(i);
  return {piece.file, piece.offset, piece.bytes, buffer, priority, TagOf(&flight), this};
}

void SpineStream::Preload(const std::function<bool()>& go_on) {
  DF_CHECK(flights_.empty());
  size_t next = 0;
  do {
    std::vector<ReadRequest> requests;
    for (; next < pieces_.size() && go_on(); ++next) {
      if (!resident_[next] || IsLoaded(next)) continue;
      std::byte* buffer = Claim(next);
      if (buffer == nullptr) break;
      requests.push_back(Launch(next, buffer));
    }
    if (!requests.empty()) queue_.Submit(requests);
    if (flights_.empty()) return;
    WaitFor(flights_.front());
    if (flights_.front().state == State::kFailed) {
      const Error error(flights_.front().error_code, flights_.front().error);
      Drop(flights_.size());
      throw error;
    }
    PopOldest();
  } while (true);
}

std::byte* SpineStream::Claim(size_t i) {
  const uint64_t bytes = ReadBufferBytes(pieces_[i].bytes);
  if (resident_[i]) {
    if (resident_ahead_bytes_ > 0 && resident_ahead_bytes_ + bytes > kResidentAheadBytes) {
      return nullptr;
    }
    resident_ahead_bytes_ += bytes;
    return resident_memory_.data() + resident_offset_[i];
  }
  if (pieces_.IsWhole(i)) {
    return std::exchange(whole_is_taken_, true) ? nullptr : whole_memory_.data();
  }
  const std::optional<size_t> offset = ring_.Claim(bytes);
  return offset ? ring_memory_.data() + *offset : nullptr;
}

void SpineStream::WaitFor(Flight& flight) {
  {
    const std::lock_guard lock(mutex_);
    if (flight.state != State::kReading) return;
  }
  const PhaseScope phase(clock_, Phase::kSpineWait);
  queue_.Promote(this, TagOf(&flight));
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return flight.state != State::kReading; });
}

void SpineStream::Drop(size_t count) {
  DF_CHECK(!oldest_in_use_);
  // From the far end: the queue starts the near ones first.
  for (size_t i = count; i-- > 0;) {
    if (queue_.Cancel(this, TagOf(&flights_[i]))) flights_[i].state = State::kCancelled;
  }
  for (size_t i = 0; i < count; ++i) {
    WaitFor(flights_.front());
    PopOldest();
  }
}

void SpineStream::PopOldest() {
  const Flight& flight = flights_.front();
  const size_t i = flight.piece;
  if (flight.in_ring) {
    ring_.FreeOldest();
  } else if (resident_[i]) {
    resident_ahead_bytes_ -= ReadBufferBytes(pieces_[i].bytes);
    if (flight.state == State::kReady) {
      loaded_[i] = flight.data;
      --num_unloaded_;
    }
  } else if (whole_in_use_ != i) {
    whole_is_taken_ = false;
  }
  flights_.pop_front();
}

}  // namespace deltafin
