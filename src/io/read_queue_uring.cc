#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "io/read_loop.h"
#include "io/read_schedule.h"

namespace deltafin {
namespace {

[[noreturn]] void Refuse(const std::string& reason) {
  throw Error(ErrorCode::kUnsupported,
              format("io_uring: the kernel refuses it ({}); read with threads", reason));
}

// A ring with room for `depth` reads and the one that wakes.
class Ring {
 public:
  explicit Ring(int depth) {
    const int error = io_uring_queue_init(static_cast<unsigned>(depth) + 1, &ring_, 0);
    if (error < 0) Refuse(ReasonOf(-error));
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ);
    io_uring_free_probe(probe);
    wake_ = ::eventfd(0, EFD_CLOEXEC);
    if (can_read && wake_ >= 0) return;
    const std::string reason = can_read ? ReasonOf(errno) : "no reads";
    Close();
    Refuse(reason);
  }
  ~Ring() { Close(); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void Read(int descriptor, std::span<std::byte> dst, uint64_t offset, void* tag, unsigned flags) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    DF_CHECK(sqe != nullptr);
    io_uring_prep_read(sqe, descriptor, dst.data(), static_cast<unsigned>(dst.size()), offset);
    io_uring_sqe_set_flags(sqe, flags);
    io_uring_sqe_set_data(sqe, tag);
  }

  // From any thread: Wait returns.
  void Wake() noexcept {
    const uint64_t one = 1;
    while (::write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

  // Sends what Read prepared, waits for Wake or a completion and calls take(tag, result) for each.
  template <class Take>
  void Wait(Take&& take) {
    if (!listening_) {
      Read(wake_, std::as_writable_bytes(std::span(&wakes_, 1)), 0, nullptr, 0);
      listening_ = true;
    }
    // Interrupted, or short of memory for a moment: what was prepared stays prepared.
    const int submitted = io_uring_submit_and_wait(&ring_, 1);
    DF_CHECK(submitted >= 0 || submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      void* const tag = io_uring_cqe_get_data(cqe);
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (tag == nullptr) {
        listening_ = false;
      } else {
        take(tag, result);
      }
    }
  }

 private:
  void Close() noexcept {
    if (wake_ >= 0) ::close(wake_);
    io_uring_queue_exit(&ring_);
  }

  io_uring ring_ = {};
  int wake_ = -1;
  bool listening_ = false;
  uint64_t wakes_ = 0;
};

// Reads files that have no descriptor: each thread one piece at a time, through the file itself.
class FileReaders {
 public:
  using Done = std::function<void(const ReadPiece&, std::exception_ptr)>;
  FileReaders(int max_threads, ReadMode mode, Done done)
      : max_threads_(max_threads), mode_(mode), done_(std::move(done)) {}
  ~FileReaders() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  FileReaders(const FileReaders&) = delete;
  FileReaders& operator=(const FileReaders&) = delete;

  // Throws when there can be no thread at all; then the piece has not started.
  void Start(const ReadPiece& piece) {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(piece);
    if (num_idle_ < pieces_.size() && static_cast<int>(threads_.size()) < max_threads_) {
      try {
        threads_.emplace_back([this] { Work(); });
      } catch (...) {
        if (threads_.empty()) {
          pieces_.pop_back();
          throw;
        }
      }
    }
    work_.notify_one();
  }

 private:
  void Work() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++num_idle_;
      work_.wait(lock, [&] { return !pieces_.empty() || stopping_; });
      --num_idle_;
      if (pieces_.empty()) return;
      const ReadPiece piece = std::move(pieces_.front());
      pieces_.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        ReadPieceNow(piece, mode_);
      } catch (...) {
        error = std::current_exception();
      }
      done_(piece, std::move(error));
      lock.lock();
    }
  }

  const int max_threads_;
  const ReadMode mode_;
  const Done done_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<ReadPiece> pieces_;
  size_t num_idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// One thread feeds the ring and hears of what it finished.
class UringReadQueue final : public ReadQueue {
 public:
  explicit UringReadQueue(const ReadQueueOptions& options)
      : options_(options),
        modes_(options),
        schedule_(options),
        ring_(options.depth),
        readers_(options.depth, options.mode,
                 [this](const ReadPiece& piece, std::exception_ptr error) {
                   Complete(piece, std::move(error));
                   ring_.Wake();
                 }),
        thread_([this] { Work(); }) {}
  ~UringReadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    ring_.Wake();
    thread_.join();
  }
  UringReadQueue(const UringReadQueue&) = delete;
  UringReadQueue& operator=(const UringReadQueue&) = delete;

  void Submit(std::span<const ReadRequest> requests) override {
    {
      const std::lock_guard lock(mutex_);
      for (const ReadRequest& request : requests) schedule_.Add(request);
    }
    ring_.Wake();
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
    ring_.Wake();
  }

  ReadCounters counters() const override {
    const std::lock_guard lock(mutex_);
    return schedule_.counters();
  }

  std::string Describe() const override {
    return format("io_uring, {}, {} deep",
                  options_.mode == ReadMode::kDirect ? "direct" : "buffered", options_.depth);
  }

 private:
  // A piece in the ring.
  struct Operation {
    ReadPiece piece;
    ReadMode mode;
    ReadCursor cursor;
  };

  void Work() noexcept {
    while (StartPieces()) {
      ring_.Wait([this](void* tag, int result) {
        Take(std::unique_ptr<Operation>(static_cast<Operation*>(tag)), result);
      });
    }
  }

  // False when the queue stops and nothing is left to do.
  bool StartPieces() {
    std::unique_lock lock(mutex_);
    while (in_flight_ < options_.depth) {
      std::optional<ReadPiece> piece = schedule_.Next();
      if (!piece) break;
      ++in_flight_;
      lock.unlock();
      try {
        Start(*piece);
      } catch (...) {
        Complete(*piece, std::current_exception());
      }
      lock.lock();
    }
    return !stopping_ || in_flight_ > 0;
  }

  void Start(const ReadPiece& piece) {
    if (piece.file().Descriptor(ReadMode::kBuffered) < 0) {
      readers_.Start(piece);
      return;
    }
    const ReadMode mode = modes_.ModeFor(piece.file());
    Send(std::make_unique<Operation>(Operation{piece, mode, CursorOf(piece, mode)}));
  }

  static ReadCursor CursorOf(const ReadPiece& piece, ReadMode mode) {
    if (mode == ReadMode::kDirect) {
      return {piece.offset, piece.dst, piece.needed, kReadAlignment};
    }
    const size_t bytes = piece.needed - piece.skip;
    return {piece.offset + piece.skip, piece.dst.subspan(piece.skip, bytes), bytes, 1};
  }

  void Send(std::unique_ptr<Operation> operation) {
    const ReadCursor& cursor = operation->cursor;
    // A buffered read that waits for nothing would be copied by this thread, one after the other.
    const unsigned flags = operation->mode == ReadMode::kBuffered ? IOSQE_ASYNC : 0;
    const int descriptor = operation->piece.file().Descriptor(operation->mode);
    ring_.Read(descriptor, cursor.dst(), cursor.offset(), operation.get(), flags);
    static_cast<void>(operation.release());  // the ring holds it; Take gets it back
  }

  void Take(std::unique_ptr<Operation> operation, int result) {
    ReadCursor& cursor = operation->cursor;
    std::string reason;
    if (result == -EINVAL && operation->mode == ReadMode::kDirect) {
      modes_.Refused(operation->piece.file());
      operation->mode = ReadMode::kBuffered;
      cursor = CursorOf(operation->piece, ReadMode::kBuffered);
    } else if (result < 0) {
      if (result != -EINTR && result != -EAGAIN) reason = ReasonOf(-result);
    } else if (!cursor.Advance(static_cast<size_t>(result))) {
      reason = kFileEnded;
    }
    if (reason.empty() && !cursor.complete()) {
      Send(std::move(operation));
      return;
    }
    Complete(operation->piece, reason.empty() ? nullptr : ErrorOf(*operation, reason));
  }

  static std::exception_ptr ErrorOf(const Operation& operation, const std::string& reason) {
    const ReadPiece& piece = operation.piece;
    const size_t lead = operation.mode == ReadMode::kDirect ? 0 : piece.skip;
    try {
      FailRead(piece.file().path(), piece.offset + lead, piece.needed - lead,
               operation.cursor.got(), reason);
    } catch (...) {
      return std::current_exception();
    }
  }

  void Complete(const ReadPiece& piece, std::exception_ptr error) {
    std::unique_lock lock(mutex_);
    const bool is_last = schedule_.Finish(piece, std::move(error));
    lock.unlock();
    if (is_last) Tell(*piece.job);
    // Only now: the queue may end when nothing is in flight.
    lock.lock();
    --in_flight_;
  }

  const ReadQueueOptions options_;
  ModeChooser modes_;
  mutable std::mutex mutex_;
  ReadSchedule schedule_;  // guarded by mutex_, as are the next two
  int in_flight_ = 0;
  bool stopping_ = false;
  Ring ring_;
  FileReaders readers_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ReadQueue> MakeUringReadQueue(const ReadQueueOptions& options) {
  return std::make_unique<UringReadQueue>(options);
}

}  // namespace deltafin
