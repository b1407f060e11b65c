// A piece of work of the hub client. Internal to the client.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "hub/hub_client.h"

namespace deltafin {

struct HubClient::Job {
  enum class Kind : uint8_t { kStat, kGet, kRange };
  // A request for a part of a file, as it was made.
  struct Segment {
    ByteRange range;
    uint64_t tag = 0;
    RangeListener* listener = nullptr;
  };

  Kind kind = Kind::kRange;
  std::string file;
  std::optional<uint64_t> file_bytes;
  bool is_ahead = false;
  RetryState retry;
  std::string url;    // to ask next: where a redirect led; "": the address of the file
  int hops = 0;       // redirects in a row
  bool asks = false;  // counts in Address::asking
  std::chrono::steady_clock::time_point not_before{};

  // kRange: neighbours, in order; the first `next` - its offset bytes of the first were delivered.
  std::deque<Segment> segments;
  uint64_t next = 0;

  // kStat.
  std::promise<Outcome<std::optional<RemoteFile>>> stat;
  RemoteFile found;
  bool probing = false;  // with a range of one byte, where a head says no size
  // kGet.
  std::promise<Outcome<std::string>> whole;
  std::string body;

  uint64_t end() const { return segments.back().range.end(); }
  Asked WhatIsAsked(bool of_hub, bool with_token) const {
    Asked asked;
    asked.of_hub = of_hub;
    asked.with_token = with_token;
    if (kind == Kind::kRange) asked.range = ByteRange{next, end() - next};
    if (probing) asked.range = ByteRange{0, 1};
    if (kind != Kind::kStat) asked.file_bytes = file_bytes;
    return asked;
  }
};

// A job on a connection.
class HubClient::Active final : public HttpHandler {
 public:
  Active(HubClient& client, std::unique_ptr<Job> job, HttpRequest request, Asked asked)
      : client_(client), job_(std::move(job)), request_(std::move(request)), asked_(asked) {}

  bool OnHead(const HttpResponse& response) override;
  bool OnBody(std::span<const std::byte> bytes) override;
  void OnEnd(const HttpEnd& end) override { client_.OnEnd(*this, end); }

  Job& job() { return *job_; }
  std::unique_ptr<Job> TakeJob() { return std::move(job_); }
  const HttpRequest& request() const { return request_; }
  const Asked& asked() const { return asked_; }
  const HttpResponse& response() const { return response_; }
  const std::optional<Judgement>& judgement() const { return judgement_; }
  // A listener refused its bytes: the others of the job are to be asked for anew.
  bool listener_refused() const { return listener_refused_; }

 private:
  bool Deliver(std::span<const std::byte> bytes);

  HubClient& client_;
  std::unique_ptr<Job> job_;
  const HttpRequest request_;
  const Asked asked_;
  HttpResponse response_;
  std::optional<Judgement> judgement_;
  uint64_t discarded_ = 0;
  bool listener_refused_ = false;
};

}  // namespace deltafin
