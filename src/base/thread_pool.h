// The one pool of compute threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace deltafin {

// Persistent worker threads that run one parallel loop at a time.
// Thread-safe: ParallelFor may be called from one thread at a time only (the scheduler thread).
class ThreadPool {
 public:
  // `num_threads` counts the caller, which works too; 1 means no worker at all. At least 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;
  // Workers that look for work at this moment: one microsecond hands such a one a piece, where one
  // that sleeps takes tens to wake. A hint: it may be over.
  int NumAwake() const;

  // The grain for a loop over `count` items of about `ns_per_item` nanoseconds on one thread, a
  // multiple of `unit`: pieces as short as pay for the threads that are awake, and for waking
  // others. Where loops follow each other that more threads would have shared if they had been
  // awake, it wakes them for the next ones. For the caller of ParallelFor, right before it.
  int64_t Grain(int64_t count, int64_t unit, double ns_per_item);

  // Calls body(begin, end) for disjoint ranges that cover [0, count) once, each but the last a
  // multiple of `grain` long and starting at a multiple of it. How the ranges are cut may differ
  // from call to call: a result must not depend on it. Runs inline when count <= grain.
  // `body` must not throw (that ends the process) and must not call ParallelFor. Returns when all
  // ranges are done. Does not allocate.
  using Body = std::function<void(int64_t begin, int64_t end)>;
  void ParallelFor(int64_t count, int64_t grain, const Body& body) noexcept;

  // The same for a lambda, which is called where it is: a std::function would put it on the heap.
  template <class Lambda>
  void ParallelFor(int64_t count, int64_t grain, const Lambda& body) noexcept {
    ParallelFor(count, grain, Body(std::cref(body)));
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Processors that this process may use, at least 1: on Linux the affinity mask, capped by the
// cgroup CPU quota (v1 and v2); on macOS all.
int UsableProcessors();

}  // namespace deltafin
