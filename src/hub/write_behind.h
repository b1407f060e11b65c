// How setup brings ranges into their shards: past the page cache, of which a model is many times
// the size, and behind the thread that receives them, which would have to wait for the disk.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/captured_error.h"
#include "base/page_memory.h"
#include "io/hash.h"
#include "store/range_writer.h"
#include "store/shard_presence.h"

namespace deltafin {

// One thread writes. Whole pages of a range go past the cache where the file system allows it; its
// edges, in whose pages the neighbours may have a part, go through it. So do small ranges, and what
// comes while the disk is so slow with direct writes that the connections would have to wait.
// Thread-safe.
class WriteBehind {
 public:
  // Memory: each range that is under way has a block, and kMaxQueued wait for the disk.
  static constexpr size_t kBlockBytes = size_t{1} << 20;
  static constexpr size_t kMaxQueued = 16;

  class Range;

  // `committer` must outlive it.
  explicit WriteBehind(Committer& committer);
  // Writes and commits what was finished; an error then is lost.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Waits until the committer has every range that was finished. Throws the first error since the
  // last Flush: the ranges that it hit were not committed.
  void Flush();

 private:
  // What is to be known of a range after it was finished, too.
  struct State {
    explicit State(ShardPresence& in) : shard(in) {}
    ShardPresence& shard;
    std::atomic<bool> failed = false;
  };
  // Bytes [begin, end) of the memory belong at shard_offset + begin, a multiple of kBlockBytes
  // further on.
  struct Block {
    PageBuffer memory;
    uint64_t shard_offset = 0;
    size_t begin = 0;
    size_t end = 0;
  };
  struct Work {
    std::shared_ptr<State> state;
    Block block;
    std::optional<PresentRange> finished;  // the last of its range: commit that
  };
  enum class Way : uint8_t { kPastCache, kThroughCache };

  PageBuffer TakeMemory();
  void Add(Work work);
  // False when there is none for longer than a connection should wait.
  bool WaitForRoom();
  void Do(Work work, Way way) noexcept;
  static void Write(SparseFile& file, const Block& block, Way way);
  void NoteError(const std::exception_ptr& error) noexcept;
  void RaiseIfFailed();
  void Run() noexcept;

  Committer& committer_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::condition_variable done_;
  std::deque<Work> queue_;
  std::vector<PageBuffer> free_;  // memory that is used again: new memory is expensive
  bool working_ = false;
  bool stopping_ = false;
  bool is_slow_ = false;  // the disk, until half of the queue is gone
  std::optional<CapturedError> error_;
  std::atomic<bool> failed_ = false;  // there is an error
  std::thread thread_;
};

// One range on its way to the disk, from its beginning on. Not thread-safe.
class WriteBehind::Range {
 public:
  // Both must outlive it.
  Range(WriteBehind& behind, ShardPresence& shard, uint64_t offset);

  // The next bytes. Throws as Flush: what hit another range is about to hit this one.
  void Write(std::span<const std::byte> bytes);
  // Commits what was written until now once it is in the shard, or nothing when a part of it cannot
  // be written. The last call.
  void Finish();

 private:
  void HandOver(std::optional<PresentRange> finished);

  WriteBehind& behind_;
  const std::shared_ptr<State> state_;
  const uint64_t offset_;
  uint64_t bytes_ = 0;
  Block block_;
  Xxh3Stream hash_;
};

}  // namespace deltafin
