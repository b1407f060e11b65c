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
constexpr std::chrono::milliseconds kMaxWaitForRoom{40};

}  // namespace

// Twice the size holds a huge page wherever it lies; what is not touched takes no memory.
WriteBehind::Memory::Memory() : pages_(2 * kBlockBytes) {
  const auto address = reinterpret_cast<uintptr_t>(pages_.data());
  data_ = pages_.data() + (kBlockBytes - address % kBlockBytes) % kBlockBytes;
  AdviseHugePages(data_, kBlockBytes);
}

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

std::unique_ptr<WriteBehind::Memory> WriteBehind::TakeMemory() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<Memory> memory = std::move(free_.back());
      free_.pop_back();
      return memory;
    }
  }
  return std::make_unique<Memory>();
}

bool WriteBehind::WaitForRoom(std::unique_lock<std::mutex>& lock) {
  const auto has_room = [this] { return queue_.size() < kMaxQueued; };
  is_slow_ =
      is_slow_ ? queue_.size() > kMaxQueued / 2 : !done_.wait_for(lock, kMaxWaitForRoom, has_room);
  return !is_slow_;
}

void WriteBehind::Add(const std::shared_ptr<State>& state, Block block) {
  {
    std::unique_lock lock(mutex_);
    if (WaitForRoom(lock)) {
      ++state->num_queued;
      queue_.push_back({state, std::move(block)});
      added_.notify_one();
      return;
    }
  }
  WriteOrFail(*state, std::move(block), Way::kThroughCache);
}

void WriteBehind::Finish(State& state, const PresentRange& range) {
  {
    const std::lock_guard lock(mutex_);
    state.finished = range;
    if (state.num_queued > 0) return;
  }
  Commit(state);
}

void WriteBehind::WriteOrFail(State& state, Block block, Way way) noexcept {
  try {
    if (!state.failed) Write(state.shard.file(), block, way);
  } catch (...) {
    state.failed = true;
    NoteError(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(block.memory));
}

void WriteBehind::Commit(State& state) noexcept {
  try {
    if (!state.failed) committer_.Add(state.shard, *state.finished);
  } catch (...) {
    NoteError(std::current_exception());
  }
}

void WriteBehind::Write(SparseFile& file, const Block& block, Way way) {
  const auto piece = [&](size_t begin, size_t end) {
    return std::span<const std::byte>(block.memory->data() + begin, end - begin);
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
    WriteOrFail(*work.state, std::move(work.block), Way::kPastCache);
    lock.lock();
    const bool is_last = --work.state->num_queued == 0 && work.state->finished;
    if (is_last) {
      lock.unlock();
      Commit(*work.state);
      lock.lock();
    }
    working_ = false;
    done_.notify_all();
  }
}

WriteBehind::Range::Range(WriteBehind& behind, ShardPresence& shard, uint64_t offset)
    : behind_(behind), state_(std::make_shared<State>(shard)), offset_(offset) {}

void WriteBehind::Range::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    behind_.RaiseIfFailed();
    if (block_.memory == nullptr) {
      block_.memory = behind_.TakeMemory();
      block_.begin = block_.end = (offset_ + bytes_) % kBlockBytes;
      block_.shard_offset = offset_ + bytes_ - block_.begin;
    }
    const auto piece = bytes.first(std::min(bytes.size(), kBlockBytes - block_.end));
    hash_.Update(piece);
    std::memcpy(block_.memory->data() + block_.end, piece.data(), piece.size());
    block_.end += piece.size();
    bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (block_.end == kBlockBytes) HandOver();
  }
}

void WriteBehind::Range::Finish() {
  HandOver();
  behind_.Finish(*state_, {offset_, bytes_, hash_.Digest()});
}

void WriteBehind::Range::HandOver() {
  if (block_.memory == nullptr) return;
  Block block = std::exchange(block_, {});
  if (block.end - block.begin < kMinDirectBytes) {
    // The way to the thread and back would cost more than it saves.
    behind_.WriteOrFail(*state_, std::move(block), Way::kThroughCache);
  } else {
    behind_.Add(state_, std::move(block));
  }
}

}  // namespace deltafin
