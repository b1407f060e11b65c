// What this machine can do at most: read bandwidth and arithmetic, measured in the process and at
// the time of the benchmark, so that figures are ratios to a limit and not to a data sheet.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"

namespace deltafin {

// Bytes that certainly do not fit into a last-level cache.
inline constexpr int64_t kColdBytes = int64_t{1} << 30;

// Bytes per second that the pool's threads read together over kColdBytes, which stay taken; the
// best of `passes`.
double ReadBytesPerSecond(ThreadPool& pool, int passes = 5);
// The same, but the memory is given back.
double ReadBytesPerSecondOnce(ThreadPool& pool);

// Bytes per second, read and written counted, of an update in place of kColdBytes.
double UpdateBytesPerSecond(ThreadPool& pool, int passes = 5);

// Fused multiply-adds of fp32, counted as two operations, per second: registers only, with the
// widest registers of `isa`, all threads of the pool; the best of `passes`.
double PeakFlops(ThreadPool& pool, CpuIsa isa, int passes = 5);

}  // namespace deltafin
