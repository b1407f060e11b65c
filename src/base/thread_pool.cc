#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "base/check.h"

namespace deltafin {
namespace {

void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

using Clock = std::chrono::steady_clock;

// Operators follow each other within microseconds, a sleeping thread needs 5 to 50 to wake, and to
// wake it takes 2 to 20 of the caller's (the most in a virtual machine): so a thread looks for a
// moment before it sleeps. No longer, because it may be in the way of the very thread that it waits
// for (another process on one of two cores) ...
constexpr std::chrono::microseconds kSpin{5};
// ... unless the last loop came within so long, or was over before it was awake: then it waits for
// the next one as long, and lets others go first.
constexpr std::chrono::microseconds kLongSpin{100};

// A piece of work shorter than this is not worth another thread, if that looks for work or if it
// has to be woken.
constexpr double kPieceNs = 3000.0;
constexpr double kPieceNsAsleep = 30000.0;
// More pieces than threads, because another process may slow one of them down; not many more,
// because each piece starts without prefetched weights.
constexpr int64_t kPiecesPerThread = 32;
// Time lost for want of a thread that is awake, within the moment below, for which one is woken.
constexpr double kLossNs = 20000.0;
constexpr std::chrono::microseconds kLossMoment{1000};
// Of what is left of a loop, the part of a thread's fair share that it claims at a time: neighbours
// in one piece (a kernel that reads ahead of itself begins anew with each), and the smallest ones
// last, so that all threads end together.
constexpr uint32_t kClaimsOfAShare = 2;

// True as soon as `ready()`; false when the moment is over.
template <class Ready>
bool SpinUntil(Ready ready, std::chrono::microseconds moment) {
  const Clock::time_point start = Clock::now();
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      CpuRelax();
    }
    const Clock::duration spent = Clock::now() - start;
    if (spent >= moment) return false;
    if (spent >= kSpin) std::this_thread::yield();
  }
}

}  // namespace

// One loop at a time. Its chunks are claimed from `unclaimed_`, some at a time, by whoever has
// time, the caller among them, and the caller returns when all claimed chunks are done: a worker
// that the system does not run delays nothing unless it holds a chunk. The plain fields of the loop
// are read only by a thread that holds a chunk, so they cannot change under it, however late it
// woke up.
class ThreadPool::Impl {
 public:
  explicit Impl(int num_threads) : claims_(kClaimsOfAShare * static_cast<uint32_t>(num_threads)) {
    DF_CHECK(num_threads >= 1);
    workers_.reserve(static_cast<size_t>(num_threads - 1));
    try {
      for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { Work(); });
    } catch (...) {  // std::system_error: the system gives no more threads
      Stop();
      throw;
    }
  }

  ~Impl() { Stop(); }

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }
  int num_workers() const { return static_cast<int>(workers_.size()); }
  int NumAwake() const { return num_workers() - asleep_.load(std::memory_order_seq_cst); }

  // Notes that a loop of `ns` is shared by `used` workers where `wanted` would do.
  void NoteLoss(double ns, int64_t used, int64_t wanted) noexcept {
    const Clock::time_point now = Clock::now();
    if (now - loss_start_ > kLossMoment) {
      loss_start_ = now;
      loss_ns_ = 0;
    }
    loss_ns_ += ns / static_cast<double>(used + 1) - ns / static_cast<double>(wanted + 1);
    const auto missing = static_cast<double>(wanted - NumAwake());
    if (missing <= 0 || loss_ns_ < kLossNs * missing) return;
    loss_ns_ = 0;
    WakeWorkers(wanted);
  }

  void Run(int64_t count, int64_t grain, const Body& body) noexcept {
    const int64_t chunks = (count - 1) / grain + 1;
    DF_CHECK(chunks <= std::numeric_limits<uint32_t>::max());
    DF_CHECK(
        !running_.exchange(true, std::memory_order_acquire));  // one caller at a time, no nesting
    body_ = &body;
    count_ = count;
    grain_ = grain;
    chunks_ = static_cast<uint32_t>(chunks);
    unfinished_.store(chunks_, std::memory_order_relaxed);
    unclaimed_.store(chunks_, std::memory_order_release);
    WakeWorkers(std::min<int64_t>(chunks - 1, num_workers()));
    WorkOnChunks();
    WaitUntilFinished();
    running_.store(false, std::memory_order_release);
  }

 private:
  // Tells those that look for work, and wakes others until `wanted` are awake. (Sequentially
  // consistent, as in Work(): a worker that goes to sleep is counted here or sees the call.)
  void WakeWorkers(int64_t wanted) {
    wake_.fetch_add(1, std::memory_order_seq_cst);
    const int64_t missing = wanted - NumAwake();
    if (missing >= num_workers()) {
      wake_.notify_all();
    } else {
      for (int64_t i = 0; i < missing; ++i) wake_.notify_one();
    }
  }

  // Claims and runs chunks until none is left; false if there was none.
  bool WorkOnChunks() noexcept {
    bool any = false;
    uint32_t left = unclaimed_.load(std::memory_order_relaxed);
    while (left > 0) {
      const uint32_t some = std::max(1u, left / claims_);
      if (!unclaimed_.compare_exchange_weak(left, left - some, std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
        continue;
      }
      any = true;
      const int64_t begin = int64_t{chunks_ - left} * grain_;
      (*body_)(begin, std::min(begin + some * grain_, count_));
      if (unfinished_.fetch_sub(some, std::memory_order_acq_rel) == some) unfinished_.notify_one();
      left = unclaimed_.load(std::memory_order_relaxed);
    }
    return any;
  }

  void WaitUntilFinished() {
    const auto finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
    if (SpinUntil(finished, kSpin)) return;
    for (uint32_t left = unfinished_.load(std::memory_order_acquire); left != 0;
         left = unfinished_.load(std::memory_order_acquire)) {
      unfinished_.wait(left, std::memory_order_acquire);
    }
  }

  void Work() noexcept {
    uint32_t seen = 0;
    auto moment = kSpin;
    while (true) {
      const auto woken = [&] { return wake_.load(std::memory_order_acquire) != seen; };
      const Clock::time_point start = Clock::now();
      if (!SpinUntil(woken, moment)) {
        asleep_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(seen, std::memory_order_seq_cst);
        asleep_.fetch_sub(1, std::memory_order_relaxed);
      }
      const bool soon = Clock::now() - start <= kLongSpin;
      seen = wake_.load(std::memory_order_acquire);
      if (stop_.load(std::memory_order_relaxed)) return;
      const bool worked = WorkOnChunks();
      moment = soon || !worked ? kLongSpin : kSpin;
    }
  }

  void Stop() noexcept {
    stop_.store(true, std::memory_order_relaxed);
    WakeWorkers(num_workers());
    for (std::thread& worker : workers_) worker.join();
  }

  const uint32_t claims_;
  std::vector<std::thread> workers_;
  const Body* body_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  uint32_t chunks_ = 0;
  // Of the caller alone.
  double loss_ns_ = 0;
  Clock::time_point loss_start_;
  std::atomic<bool> running_{false};
  std::atomic<bool> stop_{false};
  // Apart from each other: every thread writes the first two, sleepers look at the third.
  alignas(64) std::atomic<uint32_t> unclaimed_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<int> asleep_{0};  // workers
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>(num_threads)) {}
ThreadPool::~ThreadPool() = default;

int ThreadPool::num_threads() const { return impl_->num_threads(); }
int ThreadPool::NumAwake() const { return impl_->NumAwake(); }

int64_t ThreadPool::Grain(int64_t count, int64_t unit, double ns_per_item) {
  const int workers = impl_->num_workers();
  const double item_ns = std::max(ns_per_item, 1e-3);
  const double loop_ns = item_ns * static_cast<double>(count);
  const auto in_units = [&](int64_t items) { return (items + unit - 1) / unit * unit; };
  // The whole loop is one piece when it is no longer than a piece should be.
  const auto grain_for = [&](double piece_ns) {
    const double worthwhile = std::ceil(piece_ns / item_ns);
    if (worthwhile >= static_cast<double>(count)) return in_units(std::max<int64_t>(count, 1));
    const int64_t even = count / (kPiecesPerThread * (workers + 1));
    return in_units(std::max({static_cast<int64_t>(worthwhile), even, int64_t{1}}));
  };
  const int64_t among_awake = grain_for(kPieceNs);
  const int awake = impl_->NumAwake();
  if (among_awake >= count || awake == workers) return among_awake;
  int64_t grain = grain_for(kPieceNsAsleep);
  if (awake > 0) {
    const int64_t share = in_units((count + awake) / (awake + 1));
    grain = std::min(grain, std::max(among_awake, share));
  }
  const int64_t wanted = std::min<int64_t>(workers, (count - 1) / among_awake);
  const int64_t used = std::min<int64_t>(workers, (count - 1) / grain);
  if (used < wanted) impl_->NoteLoss(loop_ns, used, wanted);
  return grain;
}

void ThreadPool::ParallelFor(int64_t count, int64_t grain, const Body& body) noexcept {
  DF_CHECK(grain >= 1);
  if (count <= 0) return;
  if (count <= grain) return body(0, count);
  impl_->Run(count, grain, body);
}

}  // namespace deltafin
