// What comes over one connection of the hub client.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "hub/hub_job.h"

namespace deltafin {
namespace {

// The body of an answer that is no use is read up to here, so that the connection can be kept.
constexpr uint64_t kMaxDiscarded = 64 << 10;
// Who keeps to a low rate still hears at once that nobody wants the bytes.
constexpr std::chrono::duration<double> kLongestNap{0.1};

}  // namespace

bool HubClient::Active::OnHead(const HttpResponse& response) {
  response_ = response;
  // A size may be all that is asked for; what the answer is worth is decided by its end.
  judgement_ = JudgeResponse(response, asked_);
  if (job_->kind == Job::Kind::kGet) job_->body.clear();
  if (judgement_->verdict == Verdict::kGood) {
    if (job_->kind == Job::Kind::kRange) client_.Settle(*job_, request_.url);
    return true;
  }
  return request_.method == HttpRequest::Method::kHead ||
         response.content_length.value_or(0) <= kMaxDiscarded;
}

bool HubClient::Active::OnBody(std::span<const std::byte> bytes) {
  if (judgement_->verdict != Verdict::kGood || job_->kind == Job::Kind::kStat) {
    discarded_ += bytes.size();
    return discarded_ <= kMaxDiscarded;
  }
  if (job_->kind == Job::Kind::kGet) {
    job_->body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    // No answer to a question of a known length is longer.
    return !job_->file_bytes || job_->body.size() <= *job_->file_bytes;
  }
  client_.received_bytes_ += bytes.size();
  auto wait = client_.rate_.Spend(bytes.size(), RateLimit::Clock::now());
  while (wait.count() > 0) {
    // libcurl hands over everything that has come before it returns: nobody waits for that.
    if (client_.IsUnwanted(*job_)) {
      listener_refused_ = true;
      return false;
    }
    const std::chrono::duration<double> nap = std::min(wait, kLongestNap);
    std::this_thread::sleep_for(nap);
    wait -= nap;
  }
  return Deliver(bytes);
}

bool HubClient::Active::Deliver(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  job_->retry.OnProgress();
  job_->hops = 0;
  while (!bytes.empty() && !job_->segments.empty()) {
    Job::Segment& segment = job_->segments.front();
    const auto piece =
        bytes.first(std::min<uint64_t>(bytes.size(), segment.range.end() - job_->next));
    try {
      segment.listener->OnRangeBytes(segment.tag, piece);
    } catch (...) {
      listener_refused_ = true;
      const Job::Segment failed = segment;
      job_->next = failed.range.end();
      job_->segments.pop_front();
      failed.listener->OnRangeFailed(failed.tag, std::current_exception());
      return false;
    }
    job_->next += piece.size();
    bytes = bytes.subspan(piece.size());
    if (job_->next < segment.range.end()) continue;
    const Job::Segment done = segment;
    job_->segments.pop_front();
    done.listener->OnRangeDone(done.tag);
  }
  // More than was announced.
  return bytes.empty();
}

}  // namespace deltafin
