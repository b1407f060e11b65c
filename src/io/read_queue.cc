#include "io/read_queue.h"

#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "io/read_schedule.h"

namespace deltafin {
namespace {

// Each thread has one piece in flight, with pread.
class ThreadReadQueue final : public ReadQueue {
 public:
  explicit ThreadReadQueue(const ReadQueueOptions& options)
      : options_(options), modes_(options), schedule_(options) {
    try {
      for (int i = 0; i < options.depth; ++i) threads_.emplace_back([this] { Work(); });
    } catch (...) {
      Stop();
      throw;
    }
  }
  ~ThreadReadQueue() override { Stop(); }
  ThreadReadQueue(const ThreadReadQueue&) = delete;
  ThreadReadQueue& operator=(const ThreadReadQueue&) = delete;

  void Submit(std::span<const ReadRequest> requests) override {
    {
      const std::lock_guard lock(mutex_);
      for (const ReadRequest& request : requests) schedule_.Add(request);
    }
    work_.notify_all();
  }

  bool Cancel(ReadListener* listener, uint64_t tag) override {
    const std::lock_guard lock(mutex_);
    return schedule_.Cancel(listener, tag);
  }

  void Promote(ReadListener* listener, uint64_t tag) override {
    {
      const std::lock_guard lock(mutex_);
      schedule_.Promote(listener, tag);
    }
    // The bound of kAhead may have held it back.
    work_.notify_all();
  }

  ReadCounters counters() const override {
    const std::lock_guard lock(mutex_);
    return schedule_.counters();
  }

  std::string Describe() const override {
    return format("threads, {}, {} deep",
                  options_.mode == ReadMode::kDirect ? "direct" : "buffered", options_.depth);
  }

 private:
  void Work() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      std::optional<ReadPiece> piece;
      // What the bound of kAhead holds back when the queue stops is taken by the threads that have
      // the others in flight.
      work_.wait(lock, [&] { return (piece = schedule_.Next()).has_value() || stopping_; });
      if (!piece) return;
      lock.unlock();
      std::exception_ptr error = Read(*piece);
      lock.lock();
      const bool is_last = schedule_.Finish(*piece, std::move(error));
      if (piece->is_ahead) work_.notify_one();
      if (is_last) {
        lock.unlock();
        Tell(*piece->job);
        piece.reset();
        lock.lock();
      }
    }
  }

  std::exception_ptr Read(const ReadPiece& piece) noexcept {
    try {
      ReadPieceNow(piece, modes_.ModeFor(piece.file()));
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  void Stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const ReadQueueOptions options_;
  ModeChooser modes_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  ReadSchedule schedule_;  // guarded by mutex_, as is stopping_
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Sends each read to the queue of its disk.
class ReadQueues final : public ReadQueue {
 public:
  explicit ReadQueues(const std::vector<DiskReads>& disks) {
    for (const DiskReads& disk : disks) {
      queues_.push_back({disk.disk, MakeReadQueue(disk.options)});
    }
  }

  void Submit(std::span<const ReadRequest> requests) override {
    std::vector<std::vector<ReadRequest>> parts(queues_.size());
    for (const ReadRequest& request : requests) {
      parts[IndexOf(DiskOf(*request.file))].push_back(request);
    }
    for (size_t i = 0; i < queues_.size(); ++i) {
      if (!parts[i].empty()) queues_[i].queue->Submit(parts[i]);
    }
  }
  bool Cancel(ReadListener* listener, uint64_t tag) override {
    return std::any_of(queues_.begin(), queues_.end(),
                       [&](const OfDisk& of) { return of.queue->Cancel(listener, tag); });
  }
  void Promote(ReadListener* listener, uint64_t tag) override {
    for (const OfDisk& of : queues_) of.queue->Promote(listener, tag);
  }
  ReadCounters counters() const override {
    ReadCounters all;
    for (const OfDisk& of : queues_) {
      const ReadCounters counters = of.queue->counters();
      all.bytes += counters.bytes;
      all.busy_seconds = std::max(all.busy_seconds, counters.busy_seconds);
    }
    return all;
  }
  std::string Describe() const override {
    std::string text;
    for (const OfDisk& of : queues_) text += (text.empty() ? "" : "; ") + of.queue->Describe();
    return text;
  }

 private:
  struct OfDisk {
    uint64_t disk;
    std::unique_ptr<ReadQueue> queue;
  };
  size_t IndexOf(uint64_t disk) const {
    for (size_t i = 0; i < queues_.size(); ++i) {
      if (queues_[i].disk == disk) return i;
    }
    return 0;
  }

  std::vector<OfDisk> queues_;
};

}  // namespace

uint64_t DiskOf(const ReadableFile& file) noexcept {
  struct stat status = {};
  const int descriptor = file.Descriptor(ReadMode::kBuffered);
  return descriptor >= 0 && ::fstat(descriptor, &status) == 0 ? static_cast<uint64_t>(status.st_dev)
                                                              : 0;
}

std::unique_ptr<ReadQueue> MakeReadQueues(const std::vector<DiskReads>& disks) {
  DF_CHECK(!disks.empty());
  if (disks.size() == 1) return MakeReadQueue(disks[0].options);
  return std::make_unique<ReadQueues>(disks);
}

std::unique_ptr<ReadQueue> MakeThreadReadQueue(const ReadQueueOptions& options) {
  return std::make_unique<ThreadReadQueue>(options);
}

std::unique_ptr<ReadQueue> MakeReadQueue(const ReadQueueOptions& options) {
  return options.engine == ReadEngine::kIoUring ? MakeUringReadQueue(options)
                                                : MakeThreadReadQueue(options);
}

}  // namespace deltafin
