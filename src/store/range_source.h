// Where the bytes of an incomplete shard come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include "io/read_queue.h"
#include "store/presence_map.h"

namespace deltafin {

// Hears of fetched bytes, on the source's thread. Must be quick; must not call the source.
class RangeListener {
 public:
  virtual ~RangeListener() = default;
  // The next bytes of the range, from its beginning on, each byte once. An Error that it throws
  // ends the range: OnRangeFailed gets it.
  virtual void OnRangeBytes(uint64_t tag, std::span<const std::byte> bytes) = 0;
  // All bytes came.
  virtual void OnRangeDone(uint64_t tag) noexcept = 0;
  // `error` holds an Error that names the file and what was tried.
  virtual void OnRangeFailed(uint64_t tag, std::exception_ptr error) noexcept = 0;
};

struct RangeRequest {
  std::string file;         // its name on the hub
  uint64_t file_bytes = 0;  // the size that it must have there
  ByteRange range;          // not empty
  ReadPriority priority = ReadPriority::kDemand;
  uint64_t tag = 0;
  RangeListener* listener = nullptr;
};

// Thread-safe. A listener must live until it heard of all its ranges, or Drop returned.
class RangeSource {
 public:
  virtual ~RangeSource() = default;
  // Starts all of them without waiting: demanded ones first, neighbours as one request where there
  // are more of them than connections. When it throws, none has started.
  virtual void Fetch(std::span<const RangeRequest> requests) = 0;
  // Takes back a range that has not started: true, and its listener hears nothing.
  virtual bool Cancel(RangeListener* listener, uint64_t tag) = 0;
  // A range that waits as kAhead becomes kDemand.
  virtual void Promote(RangeListener* listener, uint64_t tag) = 0;
  // Ends everything of this listener: it hears OnRangeFailed with Error(kCancelled) before this
  // returns. Not on the source's thread.
  virtual void Drop(RangeListener* listener) = 0;
  // "https://huggingface.co/moonshotai/Kimi-K3" for messages.
  virtual std::string Describe() const = 0;
};

}  // namespace deltafin
