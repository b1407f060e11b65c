// Many large reads at once: the one way in which weights come from disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"

namespace deltafin {

// How long a buffer must be for a read of `bytes` at any offset: direct reads start and end at
// multiples of kReadAlignment, so the queue reads a little more than was asked for.
constexpr size_t ReadBufferBytes(uint64_t bytes) {
  return static_cast<size_t>((bytes + 2 * kReadAlignment - 1) / kReadAlignment * kReadAlignment);
}

enum class ReadPriority : uint8_t {
  kDemand,  // somebody waits for it, or will at once
  kSoon,    // will be waited for: starts when no demanded read is waiting
  kAhead,   // a guess or a reserve: starts when none of the above is waiting
};

// Hears of finished reads, on a thread of the queue. Must be quick; must not call the queue.
class ReadListener {
 public:
  virtual ~ReadListener() = default;
  // `data` is what was asked for, somewhere inside the buffer.
  virtual void OnRead(uint64_t tag, std::span<const std::byte> data) noexcept = 0;
  // `error` holds an Error that names file, offset, expected and got.
  virtual void OnReadFailed(uint64_t tag, std::exception_ptr error) noexcept = 0;
};

struct ReadRequest {
  const ReadableFile* file = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;           // at least 1
  std::byte* buffer = nullptr;  // multiple of kReadAlignment, ReadBufferBytes(bytes) long
  ReadPriority priority = ReadPriority::kDemand;
  uint64_t tag = 0;  // for the listener
  ReadListener* listener = nullptr;
};

// What a queue has done since it was made.
struct ReadCounters {
  uint64_t bytes = 0;       // that were asked for and came
  double busy_seconds = 0;  // for which at least one read was under way
};

// Thread-safe. File, buffer and listener must live until the listener heard of the read, or Cancel
// returned true for it.
class ReadQueue {
 public:
  // Every read that was submitted is finished or failed (and its listener told) before this
  // returns.
  virtual ~ReadQueue() = default;
  // Starts all of them at once, in order, without waiting.
  virtual void Submit(std::span<const ReadRequest> requests) = 0;
  // Takes back a read that has not started: true, and its listener hears nothing. False when it has
  // (the listener hears of it as usual) or is unknown.
  virtual bool Cancel(ReadListener* listener, uint64_t tag) = 0;
  // A read that waits as kSoon or kAhead becomes kDemand, and so do the pieces that wait of one
  // that has started. No effect when it is unknown.
  virtual void Promote(ReadListener* listener, uint64_t tag) = 0;
  virtual ReadCounters counters() const { return {}; }
  // "io_uring, direct, 32 deep" for people.
  virtual std::string Describe() const = 0;
};

enum class ReadEngine : uint8_t { kThreads, kIoUring };
struct ReadQueueOptions {
  ReadEngine engine = ReadEngine::kThreads;
  ReadMode mode = ReadMode::kBuffered;
  int depth = 8;                       // pieces in flight; kThreads: one thread each
  uint64_t split_bytes = 1024 * 1024;  // larger reads go out in pieces of this, side by side
  // Hears one sentence for each file that is read buffered although mode is kDirect, on a thread of
  // the queue. Must not throw and must not call the queue.
  std::function<void(const std::string&)> on_notice = nullptr;
};

// depth is at least 1 and split_bytes at least kReadAlignment. Of kAhead, at most half of depth
// (and at least one piece) is in flight, so that a demanded read finds room at once. Throws
// Error(kUnsupported) when the kernel refuses io_uring. A file whose file system refuses direct
// reads is read buffered.
std::unique_ptr<ReadQueue> MakeReadQueue(const ReadQueueOptions& options);

// The number of the disk that a file lies on; 0 where that cannot be told.
uint64_t DiskOf(const ReadableFile& file) noexcept;

// A queue for each disk, behind one: all disks read at once, and none waits for a slower one. What
// lies on a disk that is not named goes to the first. At least one disk. Counts the bytes of all
// and the time of the one that was busy the longest.
struct DiskReads {
  uint64_t disk = 0;  // DiskOf
  ReadQueueOptions options;
};
std::unique_ptr<ReadQueue> MakeReadQueues(const std::vector<DiskReads>& disks);

}  // namespace deltafin
