#include "hub/memory_fetch.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "base/captured_error.h"

namespace deltafin {
namespace {

constexpr std::chrono::milliseconds kTick{100};

class Collector final : public RangeListener {
 public:
  explicit Collector(size_t count) : texts_(count), left_(count) {}

  void OnRangeBytes(uint64_t tag, std::span<const std::byte> bytes) override {
    texts_[tag].append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void OnRangeDone(uint64_t) noexcept override { End(nullptr); }
  void OnRangeFailed(uint64_t, std::exception_ptr error) noexcept override { End(error); }

  // True when all have ended, or one has failed.
  bool WaitABit() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTick, [this] { return left_ == 0 || error_; });
  }
  std::optional<CapturedError> error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  std::vector<std::string> Take() { return std::move(texts_); }

 private:
  void End(const std::exception_ptr& error) {
    const std::lock_guard lock(mutex_);
    if (error != nullptr && !error_) error_ = Capture(error);
    --left_;
    changed_.notify_all();
  }

  std::vector<std::string> texts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t left_;
  std::optional<CapturedError> error_;
};

}  // namespace

std::vector<std::string> FetchToMemory(HubClient& client, const std::vector<MemoryRange>& ranges,
                                       const HubClient::KeepGoing& keep_going) {
  Collector collector(ranges.size());
  std::vector<RangeRequest> requests;
  for (size_t i = 0; i < ranges.size(); ++i) {
    requests.push_back({ranges[i].file, ranges[i].file_bytes, ranges[i].range,
                        ReadPriority::kDemand, i, &collector});
  }
  client.Fetch(requests);
  bool stopped = false;
  while (!collector.WaitABit() && !stopped) stopped = keep_going && !keep_going();
  const std::optional<CapturedError> error = collector.error();
  client.Drop(&collector);
  if (error) error->Raise();
  if (stopped) throw Error(ErrorCode::kCancelled, "stopped on request");
  return collector.Take();
}

}  // namespace deltafin
