#include "hub/write_behind.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "io/sparse_file.h"

namespace deltafin {
namespace {

// What is smaller is written sooner by the system, many at once, than by a wait for each.
constexpr size_t kMinDirectBytes = size_t{256} << 10;
// 50 MB/s, below which the cache is of more use than its absence.
constexpr std::chrono::milliseconds kMaxWaitForRoom{20};

}  // namespace

WriteBehind::WriteBehind(Committer& committer)
    : committer_(committer), thread_([this] { Run(); }) {}

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  added_.notify_all();
  thread_.join();
}

void WriteBehind::Flush() {
  {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return queue_.empty() && !working_; });
  }
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  failed_ = false;
  std::exchange(error_, std::nullopt)->Raise();
}

PageBuffer WriteBehind::TakeMemory() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      PageBuffer memory = std::move(free_.back());
      free_.pop_back();
      return memory;
    }
  }
  return PageBuffer(kBlockBytes);
}

void WriteBehind::Add(Work work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  added_.notify_one();
}

bool WriteBehind::WaitForRoom() {
  std::unique_lock lock(mutex_);
  const auto has_room = [this] { return queue_.size() < kMaxQueued; };
  is_slow_ =
      is_slow_ ? queue_.size() > kMaxQueued / 2 : !done_.wait_for(lock, kMaxWaitForRoom, has_room);
  return !is_slow_;
}

void WriteBehind::Do(Work work, Way way) noexcept {
  State& state = *work.state;
  try {
    if (!state.failed) Write(state.shard.file(), work.block, way);
    if (!state.failed && work.finished) committer_.Add(state.shard, *work.finished);
  } catch (...) {
    state.failed = true;
    NoteError(std::current_exception());
  }
  if (work.block.memory.size() == 0) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(work.block.memory));
}

void WriteBehind::Write(SparseFile& file, const Block& block, Way way) {
  const auto piece = [&](size_t begin, size_t end) {
    return std::span<const std::byte>(block.memory.data() + begin, end - begin);
  };
  const size_t alignment = DirectWriteAlignment();
  const size_t begin = (block.begin + alignment - 1) / alignment * alignment;
  const size_t end = block.end / alignment * alignment;
  const bool is_large = begin + kMinDirectBytes <= end;
  if (is_large && way == Way::kPastCache &&
      file.WriteDirect(block.shard_offset + begin, piece(begin, end))) {
    file.WriteAt(block.shard_offset + block.begin, piece(block.begin, begin));
    file.WriteAt(block.shard_offset + end, piece(end, block.end));
    return;
  }
  file.WriteAt(block.shard_offset + block.begin, piece(block.begin, block.end));
  if (is_large) file.StartWriteback(block.shard_offset + begin, end - begin);
}

void WriteBehind::NoteError(const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = Capture(error);
  failed_ = true;
}

void WriteBehind::RaiseIfFailed() {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  if (error_) error_->Raise();
}

void WriteBehind::Run() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    added_.wait(lock, [this] { return !queue_.empty() || stopping_; });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    working_ = true;
    lock.unlock();
    Do(std::move(work), Way::kPastCache);
    lock.lock();
    working_ = false;
    done_.notify_all();
  }
}

WriteBehind::Range::Range(WriteBehind& behind, ShardPresence& shard, uint64_t offset)
    : behind_(behind), state_(std::make_shared<State>(shard)), offset_(offset) {}

void WriteBehind::Range::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    behind_.RaiseIfFailed();
    if (block_.memory.size() == 0) {
      block_.memory = behind_.TakeMemory();
      block_.begin = block_.end = (offset_ + bytes_) % kBlockBytes;
      block_.shard_offset = offset_ + bytes_ - block_.begin;
    }
    const auto piece = bytes.first(std::min(bytes.size(), kBlockBytes - block_.end));
    hash_.Update(piece);
    std::memcpy(block_.memory.data() + block_.end, piece.data(), piece.size());
    block_.end += piece.size();
    bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (block_.end == kBlockBytes) HandOver(std::nullopt);
  }
}

void WriteBehind::Range::Finish() { HandOver(PresentRange{offset_, bytes_, hash_.Digest()}); }

void WriteBehind::Range::HandOver(std::optional<PresentRange> finished) {
  Work work{state_, std::exchange(block_, {}), finished};
  const size_t size = work.block.end - work.block.begin;
  if (size == bytes_ && size < kMinDirectBytes) {
    // All of the range: nothing of it is in the queue that this could overtake.
    behind_.Do(std::move(work), Way::kThroughCache);
    return;
  }
  if (size > 0 && !behind_.WaitForRoom()) {
    behind_.Do({state_, std::move(work.block), std::nullopt}, Way::kThroughCache);
    if (!finished) return;
    work.block = {};
  }
  behind_.Add(std::move(work));
}

}  // namespace deltafin
