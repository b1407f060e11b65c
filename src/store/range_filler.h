// Fetches missing ranges of shards into memory and, behind that, into the shards. Internal to the
// store.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/range_source.h"
#include "store/range_writer.h"
#include "store/shard_presence.h"

namespace deltafin {

// Thread-safe.
class RangeFiller final : private RangeListener {
 public:
  // Hears how a fetch ended: null, or the error. On the source's thread; must be quick.
  using Done = std::function<void(std::exception_ptr)>;
  struct Fetch {
    std::shared_ptr<ShardPresence> shard;
    ByteRange range;           // all of it missing
    std::byte* dst = nullptr;  // must live until `done` was called
    ReadPriority priority = ReadPriority::kDemand;
    Done done;
  };

  // `source` may be null: every fetch then fails, saying what to do. `folder_flags`: as ModelFiles.
  RangeFiller(std::shared_ptr<RangeSource> source, std::string folder_flags);
  // Fetches that are under way fail.
  ~RangeFiller() override;

  // Returns a number for each, for the two below. An error that is known at once comes through
  // `done`, before this returns.
  std::vector<uint64_t> Start(std::vector<Fetch> fetches);
  // As RangeSource.
  bool Cancel(uint64_t id);
  void Promote(uint64_t id);
  // Every fetch that is under way fails before this returns.
  void DropAll();
  // The same, and so does every later one at once.
  void Close();
  uint64_t fetched_bytes() const { return fetched_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Active {
    Fetch fetch;
    uint64_t got = 0;
    std::optional<RangeWriter> writer;  // none: it is not kept
  };

  void OnRangeBytes(uint64_t tag, std::span<const std::byte> bytes) override;
  void OnRangeDone(uint64_t tag) noexcept override;
  void OnRangeFailed(uint64_t tag, std::exception_ptr error) noexcept override;

  bool MayKeep(const ShardPresence& shard, uint64_t bytes);
  std::unique_ptr<Active> Take(uint64_t id);

  const std::shared_ptr<RangeSource> source_;
  const std::string folder_flags_;
  std::mutex mutex_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Active>> active_;
  std::atomic<uint64_t> fetched_bytes_ = 0;
  std::atomic<uint64_t> unchecked_bytes_;  // fetched since the free space was looked at
  std::atomic<bool> has_space_ = true;
  std::atomic<bool> closed_ = false;
  Committer committer_;
};

}  // namespace deltafin
