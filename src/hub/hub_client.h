// The hub: sizes and hashes of files, small files whole, ranges of large ones.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/captured_error.h"
#include "deltafin/hub.h"
#include "hub/http_session.h"
#include "hub/rate_limit.h"
#include "hub/retry_policy.h"
#include "store/range_source.h"

namespace deltafin {

// What the hub says of a file.
struct RemoteFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;  // "": not said
  std::string commit;  // of the revision; "": not said
};

// One thread does all; each connection serves one request at a time. Redirects lead to signed
// addresses that are used until they expire; the token goes to the hub alone. Thread-safe.
class HubClient final : public RangeSource {
 public:
  // Hears what a person may want to know while requests are tried again, on the client's thread.
  using Notice = std::function<void(const std::string&)>;
  // Asked a few times a second by whoever waits; false ends the wait with Error(kCancelled).
  using KeepGoing = std::function<bool()>;

  explicit HubClient(const HubOptions& options, Notice notice = nullptr);
  // Ends everything; listeners hear OnRangeFailed.
  ~HubClient() override;

  const HubOptions& options() const { return options_; }
  // In the order of `files`; empty where the hub has no such file.
  std::vector<std::optional<RemoteFile>> Stat(std::span<const std::string> files,
                                              const KeepGoing& keep_going);
  // The whole file, of the size that `file` says.
  std::string Get(const RemoteFile& file, const KeepGoing& keep_going);
  // Bytes of ranges that came.
  uint64_t received_bytes() const { return received_bytes_; }

  void Fetch(std::span<const RangeRequest> requests) override;
  bool Cancel(RangeListener* listener, uint64_t tag) override;
  void Promote(RangeListener* listener, uint64_t tag) override;
  void Drop(RangeListener* listener) override;
  std::string Describe() const override;

 private:
  struct Job;
  class Active;
  // What a thread that waits gets.
  template <class Result>
  struct Outcome {
    Result value{};
    std::optional<CapturedError> error = std::nullopt;
  };
  using Queue = std::deque<std::unique_ptr<Job>>;
  // What is known of a file's address.
  struct Address {
    std::string url;  // that served a range, and has not been refused since; "": none
    int asking = 0;   // requests that may find one
  };

  void Work() noexcept;
  bool IsUnwanted(const Job& job);
  void StartJobs();
  std::unique_ptr<Job> NextJob();
  std::unique_ptr<Job> TakeReady(Queue& queue, std::chrono::steady_clock::time_point now);
  bool MayStart(const Job& job, std::chrono::steady_clock::time_point now);
  void Coalesce(Job& job, Queue& queue);
  void Start(std::unique_ptr<Job> job);
  void Settle(Job& job, const std::string& url);
  void OnEnd(Active& active, const HttpEnd& end);
  void Conclude(std::unique_ptr<Job> job);
  void Follow(std::unique_ptr<Job> job, const HttpResponse& response, const std::string& from);
  void TryAgain(std::unique_ptr<Job> job, const Judgement& judgement, const std::string& url);
  static void Fail(Job& job, const CapturedError& error);
  void Requeue(std::unique_ptr<Job> job);
  void FailListener(RangeListener* listener);
  void FailRanges();
  void FailAll();
  std::chrono::milliseconds TimeToWait();
  void Submit(std::unique_ptr<Job> job);
  template <class Result>
  Result Await(std::future<Outcome<Result>>& result, const KeepGoing& keep_going);

  const HubOptions options_;
  const Notice notice_;
  std::atomic<uint64_t> received_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable dropped_;
  Queue asked_;  // what somebody waits for: sizes, small files
  Queue demand_;
  Queue ahead_;
  std::vector<RangeListener*> to_drop_;
  bool stopping_ = false;

  // Of the thread.
  std::map<std::string, Address> addresses_;
  bool hub_serves_itself_ = false;  // ranges, without redirects
  std::chrono::steady_clock::time_point pause_until_{};
  std::mt19937_64 random_;
  RateLimit rate_;
  HttpSession session_;
  std::vector<std::unique_ptr<Active>> active_;
  std::thread thread_;
};

}  // namespace deltafin
