// Reads the pieces of the spine in the order of the forward pass, ahead of it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/page_memory.h"
#include "base/phase_clock.h"
#include "deltafin/error.h"
#include "io/read_queue.h"
#include "store/byte_ring.h"
#include "store/spine_pieces.h"

namespace deltafin {

// Resident pieces are read once, into memory of their own; all others pass through a ring, again in
// every pass, from the first layer to the top and on to the first layer of the next
// pass. The order is a guess: whoever asks for another piece gets it, but waits. One thread calls;
// the queue's threads only report.
class SpineStream final : private ReadListener {
 public:
  // The ring holds at least the largest streamed piece; it may be 0 bytes when every piece is
  // resident. `resident` has an entry for each piece. The queue must outlive it.
  SpineStream(SpinePieces pieces, std::vector<bool> resident, uint64_t ring_bytes, ReadQueue& queue,
              PhaseClock* clock);
  // Waits for the reads that are under way.
  ~SpineStream() override;
  SpineStream(const SpineStream&) = delete;
  SpineStream& operator=(const SpineStream&) = delete;

  const SpinePieces& pieces() const { return pieces_; }
  // Read so far, of the layers and of the top. Thread-safe.
  uint64_t layer_bytes() const { return layer_bytes_.load(std::memory_order_relaxed); }
  uint64_t top_bytes() const { return top_bytes_.load(std::memory_order_relaxed); }

  // Reads all resident pieces, as long as `go_on` says so. Only before the first Seek. Throws Error
  // when a read fails.
  void Preload(const std::function<bool()>& go_on);

  // The pieces from number i on are needed next: starts reading, without waiting.
  void Seek(size_t i);
  // The bytes of a piece, waiting for them; then Free or the next call of Seek or Get may take a
  // streamed one away. A whole matrix stays until FreeWhole, a resident piece for good. Throws
  // Error when the read fails, which it does twice if it was read ahead; the next Get tries it
  // again.
  std::span<const std::byte> Get(size_t i);
  // Whether Get would not wait: its read is under way now at the latest. As Get, it may take a
  // streamed piece away.
  bool IsThere(size_t i);
  void Free();
  void FreeWhole();
  // A streamed piece that somebody else holds: it is not read any more, and Get may not ask for it,
  // until DropHeld says so of all of them.
  void SetHeld(size_t i);
  bool IsHeld(size_t i) const { return held_[i]; }
  void DropHeld();
  // A resident piece that was used before: no read. Null otherwise.
  const std::byte* IfLoaded(size_t i) const { return loaded_[i].data(); }

 private:
  enum class State : uint8_t { kReading, kReady, kFailed, kCancelled };
  // A piece that is being read, or was and waits to be used. State and what follows it are guarded
  // by mutex_ while kReading, and belong to the caller's thread afterwards.
  struct Flight {
    size_t piece = 0;
    bool in_ring = false;
    State state = State::kReading;
    std::span<const std::byte> data;
    ErrorCode error_code = ErrorCode::kIo;
    std::string error;
  };

  void OnRead(uint64_t tag, std::span<const std::byte> data) noexcept override;
  void OnReadFailed(uint64_t tag, std::exception_ptr error) noexcept override;

  bool IsLoaded(size_t i) const { return IfLoaded(i) != nullptr || held_[i]; }
  size_t Next(size_t i) const { return i + 1 == pieces_.size() ? 0 : i + 1; }
  // Submits reads from the cursor on, as far as there is room.
  void Fill();
  // Where piece i is to be read to; null when there is no room now.
  std::byte* Claim(size_t i);
  // Adds a flight of piece i to `buffer`; the read that the queue is to be given.
  ReadRequest Launch(size_t i, std::byte* buffer);
  void WaitFor(Flight& flight);
  // Takes the `count` oldest flights back: cancels, or waits and keeps what belongs to residents.
  void Drop(size_t count);
  // Ends the oldest flight, which is not kReading.
  void PopOldest();

  const SpinePieces pieces_;
  const std::vector<bool> resident_;
  ReadQueue& queue_;
  PhaseClock* const clock_;
  PageBuffer ring_memory_;
  ByteRing ring_;
  PageBuffer whole_memory_;
  bool whole_is_taken_ = false;         // by a flight or by the caller
  std::optional<size_t> whole_in_use_;  // piece that the caller has
  std::span<const std::byte> whole_data_;
  PageBuffer resident_memory_;
  std::vector<uint64_t> resident_offset_;           // [pieces]
  std::vector<std::span<const std::byte>> loaded_;  // of resident pieces, null until then
  std::vector<bool> held_;                          // of streamed pieces: by somebody else
  size_t num_unloaded_;                             // pieces that are neither
  size_t cursor_ = 0;                               // the next piece to submit
  std::deque<Flight> flights_;                      // oldest first, consecutive up to cursor_
  bool oldest_in_use_ = false;
  uint64_t resident_ahead_bytes_ = 0;  // of flights that are not in the ring

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::atomic<uint64_t> layer_bytes_ = 0;
  std::atomic<uint64_t> top_bytes_ = 0;
};

}  // namespace deltafin
