// How fetched bytes come into a shard: written at once, then brought to the disk and recorded by
// one thread for all.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/captured_error.h"
#include "io/hash.h"
#include "store/shard_presence.h"

namespace deltafin {

// Writes one range from its beginning on and computes its checksum. Takes memory when the first
// bytes come: many ranges may wait at a time. Not thread-safe.
class RangeWriter {
 public:
  // `shard` must outlive it.
  RangeWriter(ShardPresence& shard, uint64_t offset);

  // The next bytes. Throws as SparseFile.
  void Write(std::span<const std::byte> bytes);
  // What was written until now, all of it handed to the system; empty when a write has failed.
  // Throws likewise.
  PresentRange Finish();

 private:
  void Flush();

  ShardPresence& shard_;
  const uint64_t begin_;
  uint64_t written_ = 0;           // bytes handed to the system
  uint64_t writeback_ = 0;         // of them, bytes that the disk was told to begin with
  std::vector<std::byte> buffer_;  // what comes next
  size_t buffered_ = 0;
  bool failed_ = false;
  Xxh3Stream hash_;
};

// Brings written ranges to the disk and records them, as many at a time as have come since it last
// did. Thread-safe.
class Committer {
 public:
  // Hears of recorded ranges, on the committer's thread.
  using Listener = std::function<void(ShardPresence&, std::span<const PresentRange>)>;
  explicit Committer(Listener on_recorded = nullptr);
  // Records what was added; an error then is lost.
  ~Committer();
  Committer(const Committer&) = delete;
  Committer& operator=(const Committer&) = delete;

  // The range was written; it is readable at once. `shard` must outlive the committer.
  void Add(ShardPresence& shard, const PresentRange& range);
  // Waits until everything that was added is recorded. Throws the first error since the last Flush:
  // the ranges that it hit are not present.
  void Flush();

 private:
  void Work() noexcept;

  const Listener on_recorded_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<ShardPresence*, std::vector<PresentRange>> pending_;
  bool working_ = false;
  bool stopping_ = false;
  std::optional<CapturedError> error_;
  std::thread thread_;
};

}  // namespace deltafin
