// Which piece of which read goes out next. The part of the read queue that all engines share.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "io/read_queue.h"

namespace deltafin {

// A request on its way.
struct ReadJob {
  ReadRequest request;
  uint64_t next = 0;  // where the next piece begins
  uint64_t end = 0;   // where the last one ends
  int in_flight = 0;
  std::exception_ptr error;  // of the first piece that failed; no more pieces start then
};

// Pages of a file: offset, dst.data() and dst.size() are multiples of kReadAlignment.
struct ReadPiece {
  std::shared_ptr<ReadJob> job;
  bool is_ahead = false;  // counts against the bound of kAhead
  uint64_t offset = 0;
  std::span<std::byte> dst;
  // What was asked for of it: dst[skip, needed).
  size_t skip = 0;
  size_t needed = 0;

  const ReadableFile& file() const { return *job->request.file; }
};

// Not thread-safe.
class ReadSchedule {
 public:
  // As MakeReadQueue.
  explicit ReadSchedule(const ReadQueueOptions& options);

  void Add(const ReadRequest& request);
  // As ReadQueue.
  bool Cancel(ReadListener* listener, uint64_t tag);
  void Promote(ReadListener* listener, uint64_t tag);

  // The next piece that may start now; it counts as started.
  std::optional<ReadPiece> Next();
  // A piece came (error is null) or failed. True when it was the last one of its read: then Tell.
  [[nodiscard]] bool Finish(const ReadPiece& piece, std::exception_ptr error);

  ReadCounters counters() const;

 private:
  using Waiting = std::deque<std::shared_ptr<ReadJob>>;
  static Waiting::iterator Find(Waiting& waiting, ReadListener* listener, uint64_t tag);

  const uint64_t split_bytes_;
  const int max_ahead_;
  int ahead_in_flight_ = 0;
  int in_flight_ = 0;
  std::chrono::steady_clock::time_point busy_since_;  // while in_flight_ > 0
  ReadCounters counters_;                             // without the time since then
  Waiting& WaitingOf(ReadPriority priority) { return waiting_[static_cast<size_t>(priority)]; }
  std::array<Waiting, 3> waiting_;  // by ReadPriority
};

// Tells the listener how a finished read ended.
void Tell(const ReadJob& job) noexcept;

// Decides in which mode a file can be read, and tells of each that refuses direct reads once.
// Thread-safe.
class ModeChooser {
 public:
  explicit ModeChooser(const ReadQueueOptions& options)
      : mode_(options.mode), on_notice_(options.on_notice) {}
  ReadMode ModeFor(const ReadableFile& file);
  void Refused(const ReadableFile& file);

 private:
  const ReadMode mode_;
  const std::function<void(const std::string&)> on_notice_;
  std::mutex mutex_;
  std::set<std::string> told_;
};

// Reads a piece with the file's own functions, in the calling thread. Throws Error.
void ReadPieceNow(const ReadPiece& piece, ReadMode mode);

// Each engine.
std::unique_ptr<ReadQueue> MakeThreadReadQueue(const ReadQueueOptions& options);
std::unique_ptr<ReadQueue> MakeUringReadQueue(const ReadQueueOptions& options);

}  // namespace deltafin
