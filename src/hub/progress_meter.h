// The rate of late, and the time that is left.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>

namespace deltafin {

// How often those who watch are told.
inline constexpr std::chrono::milliseconds kProgressEvery{200};

// Not thread-safe.
class ProgressMeter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressMeter(Clock::time_point start) : start_(start) { points_.push_back({start, 0}); }

  // `bytes` since the start.
  void Update(uint64_t bytes, Clock::time_point now) {
    points_.push_back({now, bytes});
    while (points_.size() > 2 && now - points_[1].first > kWindow) points_.pop_front();
  }
  double seconds() const { return Seconds(points_.back().first - start_); }
  // Over the last seconds; 0 when nothing is known.
  double bytes_per_second() const {
    const double seconds = Seconds(points_.back().first - points_.front().first);
    const double bytes = static_cast<double>(points_.back().second - points_.front().second);
    return seconds > 0 ? bytes / seconds : 0;
  }
  // 0 when it is not known.
  double SecondsLeft(uint64_t bytes) const {
    const double rate = bytes_per_second();
    return rate > 0 ? static_cast<double>(bytes) / rate : 0;
  }

 private:
  static constexpr std::chrono::seconds kWindow{15};
  static double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  Clock::time_point start_;
  std::deque<std::pair<Clock::time_point, uint64_t>> points_;
};

}  // namespace deltafin
