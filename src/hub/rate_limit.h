// Bytes per second, over all connections.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace deltafin {

// Not thread-safe.
class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;

  // 0: no limit.
  explicit RateLimit(uint64_t bytes_per_second) : rate_(static_cast<double>(bytes_per_second)) {}

  // Bytes came: how long to wait before more may come. What was not used for a while is lost, but
  // for a tenth of a second.
  std::chrono::duration<double> Spend(uint64_t bytes, Clock::time_point now) {
    if (rate_ == 0) return {};
    constexpr std::chrono::milliseconds kBurst{100};
    paid_until_ = std::max(paid_until_, now - kBurst) +
                  std::chrono::duration_cast<Clock::duration>(
                      std::chrono::duration<double>(static_cast<double>(bytes) / rate_));
    return paid_until_ - now;
  }

 private:
  double rate_;
  Clock::time_point paid_until_{};
};

}  // namespace deltafin
