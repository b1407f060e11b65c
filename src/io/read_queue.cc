#include "io/read_queue.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

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
  std::mutex mutex_;
  std::condition_variable work_;
  ReadSchedule schedule_;  // guarded by mutex_, as is stopping_
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadQueue> MakeThreadReadQueue(const ReadQueueOptions& options) {
  return std::make_unique<ThreadReadQueue>(options);
}

std::unique_ptr<ReadQueue> MakeReadQueue(const ReadQueueOptions& options) {
  return options.engine == ReadEngine::kIoUring ? MakeUringReadQueue(options)
                                                : MakeThreadReadQueue(options);
}

}  // namespace deltafin
