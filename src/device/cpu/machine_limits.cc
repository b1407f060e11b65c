#include "device/cpu/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/buffer.h"
#include "device/cpu/peak_loops.h"

namespace deltafin {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ReadRate(ThreadPool& pool, const AlignedBuffer<uint64_t>& data, int passes) {
  static std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const double begin = Seconds();
    pool.ParallelFor(static_cast<int64_t>(data.size()), int64_t{1} << 17,
                     [&](int64_t from, int64_t to) {
                       sink.fetch_add(peak_loops::SumWords(data.data() + from, to - from),
                                      std::memory_order_relaxed);
                     });
    best = std::max(best, static_cast<double>(kColdBytes) / (Seconds() - begin));
  }
  return best;
}

}  // namespace

double ReadBytesPerSecond(ThreadPool& pool, int passes) {
  static const AlignedBuffer<uint64_t> data(kColdBytes / 8);
  return ReadRate(pool, data, passes);
}

double ReadBytesPerSecondOnce(ThreadPool& pool) {
  constexpr int kPasses = 3;
  return ReadRate(pool, AlignedBuffer<uint64_t>(kColdBytes / 8), kPasses);
}

double UpdateBytesPerSecond(ThreadPool& pool, int passes) {
  static AlignedBuffer<float> data(kColdBytes / sizeof(float));
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const double begin = Seconds();
    pool.ParallelFor(static_cast<int64_t>(data.size()), int64_t{1} << 18,
                     [&](int64_t from, int64_t to) {
                       for (int64_t i = from; i < to; ++i) data[i] = data[i] * 0.5f + 1.0f;
                     });
    best = std::max(best, 2 * static_cast<double>(kColdBytes) / (Seconds() - begin));
  }
  return best;
}

double PeakFlops(ThreadPool& pool, CpuIsa isa, int passes) {
  constexpr int64_t kSteps = 2'000'000;
  static std::atomic<int64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    std::atomic<int64_t> operations{0};
    const double begin = Seconds();
    pool.ParallelFor(2 * pool.num_threads(), 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        float result = 0;
        operations += peak_loops::FmaLoop(isa, kSteps, &result);
        sink += result > 0 ? 1 : 0;
      }
    });
    best = std::max(best, static_cast<double>(operations.load()) / (Seconds() - begin));
  }
  return best;
}

}  // namespace deltafin
