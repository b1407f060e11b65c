#include "store/range_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace deltafin {
namespace {

// Small pieces come from the network (16 KB); a system call for each would cost as much as the
// copying.
constexpr size_t kBufferBytes = 256 << 10;
constexpr uint64_t kWritebackBytes = uint64_t{4} << 20;

}  // namespace

RangeWriter::RangeWriter(ShardPresence& shard, uint64_t offset) : shard_(shard), begin_(offset) {}

void RangeWriter::Write(std::span<const std::byte> bytes) {
  if (buffer_.empty()) buffer_.resize(kBufferBytes);
  hash_.Update(bytes);
  // Until all of them are taken: the checksum has them already.
  failed_ = true;
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), buffer_.size() - buffered_);
    std::memcpy(buffer_.data() + buffered_, bytes.data(), count);
    buffered_ += count;
    bytes = bytes.subspan(count);
    if (buffered_ == buffer_.size()) Flush();
  }
  failed_ = false;
}

void RangeWriter::Flush() {
  if (buffered_ == 0) return;
  shard_.file().WriteAt(begin_ + written_, std::span(buffer_).first(buffered_));
  written_ += buffered_;
  buffered_ = 0;
  if (written_ - writeback_ < kWritebackBytes) return;
  shard_.file().StartWriteback(begin_ + writeback_, written_ - writeback_);
  writeback_ = written_;
}

PresentRange RangeWriter::Finish() {
  if (failed_) return {begin_, 0, 0};
  Flush();
  return {begin_, written_, hash_.Digest()};
}

Committer::Committer(Listener on_recorded)
    : on_recorded_(std::move(on_recorded)), thread_([this] { Work(); }) {}

Committer::~Committer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Committer::Add(ShardPresence& shard, const PresentRange& range) {
  // Somebody else may have fetched it at the same time.
  if (range.bytes == 0 || !shard.MarkReadable(range)) return;
  {
    const std::lock_guard lock(mutex_);
    pending_[&shard].push_back(range);
  }
  changed_.notify_all();
}

void Committer::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return pending_.empty() && !working_; });
  if (error_) std::exchange(error_, std::nullopt)->Raise();
}

void Committer::Work() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !pending_.empty() || stopping_; });
    if (pending_.empty()) return;
    const auto batch = std::exchange(pending_, {});
    working_ = true;
    lock.unlock();
    std::optional<CapturedError> error;
    for (const auto& [shard, ranges] : batch) {
      try {
        shard->Record(ranges);
        if (on_recorded_) on_recorded_(*shard, ranges);
      } catch (...) {
        error = Capture(std::current_exception());
      }
    }
    lock.lock();
    working_ = false;
    if (error && !error_) error_ = std::move(error);
    changed_.notify_all();
  }
}

}  // namespace deltafin
