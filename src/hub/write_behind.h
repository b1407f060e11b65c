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

#include "base/buffer.h"
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
  static constexpr size_t kBlockBytes = kHugePageBytes;
  static constexpr size_t kMaxQueued = 8;

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
  // Of a range; while blocks of it are on their way it outlives the Range.
  struct State {
    explicit State(ShardPresence& in) : shard(in) {}
    ShardPresence& shard;
    std::atomic<bool> failed = false;
    // Under the mutex.
    size_t num_queued = 0;  // blocks that are not written yet
    std::optional<PresentRange> finished;
  };
  // One huge page: for a direct write the system has to find each page of the memory, which took
  // 9 % of setup's time with small ones (docs/experiments.md).
  class Memory {
   public:
    Memory();
    std::byte* data() const { return data_; }

   private:
    PageBuffer pages_;
    std::byte* data_;
  };
  // Bytes [begin, end) of the memory belong at shard_offset + begin, a multiple of kBlockBytes
  // further on.
  struct Block {
    std::unique_ptr<Memory> memory;
    uint64_t shard_offset = 0;
    size_t begin = 0;
    size_t end = 0;
  };
  struct Work {
    std::shared_ptr<State> state;
    Block block;
  };
  enum class Way : uint8_t { kPastCache, kThroughCache };

  std::unique_ptr<Memory> TakeMemory();
  // Takes a block to the thread, or writes it when the connection would wait too long for that.
  void Add(const std::shared_ptr<State>& state, Block block);
  void Finish(State& state, const PresentRange& range);
  // False when there is none for longer than a connection should wait.
  bool WaitForRoom(std::unique_lock<std::mutex>& lock);
  void WriteOrFail(State& state, Block block, Way way) noexcept;
  static void Write(SparseFile& file, const Block& block, Way way);
  void Commit(State& state) noexcept;
  void NoteError(const std::exception_ptr& error) noexcept;
  void RaiseIfFailed();
  void Run() noexcept;

  Committer& committer_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::condition_variable done_;
  std::deque<Work> queue_;
  // Used again: new memory is expensive.
  std::vector<std::unique_ptr<Memory>> free_;
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
  void HandOver();

  WriteBehind& behind_;
  const std::shared_ptr<State> state_;
  const uint64_t offset_;
  uint64_t bytes_ = 0;
  Block block_;
  Xxh3Stream hash_;
};

}  // namespace deltafin
