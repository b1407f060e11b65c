// A stand-in for the hub: redirects to signed links that expire, the headers of large files, and
// faults on cue.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace deltafin {

// What a request may meet with.
enum class HubFault : uint8_t {
  kNone,
  kBusy,            // 429 with Retry-After
  kServerError,     // 500
  kBadGateway,      // 502, as a page
  kUnavailable,     // 503
  kForbidden,       // 403
  kNotFound,        // 404
  kRangeRefused,    // 416
  kWholeFile,       // 200 and the whole file, whatever range was asked for
  kOtherRange,      // 206 of another range
  kOtherTotal,      // 206 of a file of another size
  kNoContentRange,  // 206 without it
  kShortLength,     // 206 that announces less than was asked for
  kTruncated,       // the connection ends in the middle of the body
  kEarlyEnd,        // the connection ends before the first byte of the body
  kStall,           // nothing comes any more
  kSlow,            // a trickle
  kCount,
};

struct HubRequest {
  enum class Stage : uint8_t {
    kHead,     // HEAD at the hub
    kResolve,  // GET at the hub
    kLink,     // GET at the signed link
  };
  Stage stage = Stage::kHead;
  std::string file;
  int64_t number = 0;  // of all requests, from 0
};

// Two servers on loopback: the hub and the store that its links lead to.
class HubDouble {
 public:
  // Serves the files of `root` as OWNER/NAME at any revision.
  explicit HubDouble(const std::string& root);
  ~HubDouble();
  HubDouble(const HubDouble&) = delete;
  HubDouble& operator=(const HubDouble&) = delete;

  std::string endpoint() const;

  // Chooses the fault of each request; null: none. Called by any thread.
  void SetFaults(std::function<HubFault(const HubRequest&)> faults);
  void set_token(const std::string& token) { token_ = token; }  // that the hub wants
  // Each link serves so many requests; 0: for ever.
  void set_uses_per_link(int uses) { uses_per_link_ = uses; }
  // Large files come from the hub itself, without redirect.
  void set_serves_itself(bool value) { serves_itself_ = value; }
  void set_says_sha256(bool value) { says_sha256_ = value; }
  void set_bytes_per_second(uint64_t bytes) { bytes_per_second_ = bytes; }

  int64_t num_requests() const { return num_requests_; }
  int64_t num_link_requests() const { return num_link_requests_; }
  // Requests at the links that carried a token: must be 0.
  int64_t num_leaks() const { return num_leaks_; }
  uint64_t body_bytes() const { return body_bytes_; }
  // Ranges that were asked for at the links or, without redirects, at the hub.
  std::vector<std::pair<uint64_t, uint64_t>> ranges(const std::string& file) const;

 private:
  struct Servers;
  struct Exchange;

  void Serve();
  void AnswerHub(Exchange& exchange);
  void AnswerLink(Exchange& exchange);
  void SendFile(Exchange& exchange, const std::string& file, HubFault fault);
  HubFault NextFault(HubRequest::Stage stage, const std::string& file);
  std::string MakeLink(const std::string& file);
  bool UseLink(const std::string& id);

  const std::string root_;
  std::string token_;
  std::atomic<int> uses_per_link_ = 0;
  std::atomic<bool> serves_itself_ = false;
  std::atomic<bool> says_sha256_ = true;
  std::atomic<uint64_t> bytes_per_second_ = 0;
  std::atomic<int64_t> num_requests_ = 0;
  std::atomic<int64_t> num_link_requests_ = 0;
  std::atomic<int64_t> num_leaks_ = 0;
  std::atomic<uint64_t> body_bytes_ = 0;
  std::atomic<bool> stopping_ = false;

  mutable std::mutex mutex_;
  std::function<HubFault(const HubRequest&)> faults_;
  std::map<std::string, std::string> sha256_;
  std::map<std::string, int> link_uses_;
  std::map<std::string, std::vector<std::pair<uint64_t, uint64_t>>> ranges_;
  int64_t next_link_ = 0;
  std::unique_ptr<Servers> servers_;
};

}  // namespace deltafin
