#include "hub/hub_client.h"

#include <algorithm>
#include <future>
#include <set>
#include <utility>

#include "base/format.h"
#include "hub/hub_job.h"
#include "hub/hub_url.h"

namespace deltafin {
namespace {

using Clock = std::chrono::steady_clock;

// Neighbours are asked for as one up to this size: three experts of the release.
constexpr uint64_t kMaxCoalesced = uint64_t{64} << 20;
constexpr int kMaxHops = 8;
constexpr std::chrono::milliseconds kLongestWait{1000};
constexpr std::chrono::milliseconds kAskWhetherToGoOn{100};

std::exception_ptr ErrorOf(ErrorCode code, const std::string& message) {
  return std::make_exception_ptr(Error(code, message));
}

bool IsPowerOfTwo(int n) { return (n & (n - 1)) == 0; }

}  // namespace

HubClient::HubClient(const HubOptions& options, Notice notice)
    : options_(options),
      notice_(std::move(notice)),
      random_(std::random_device{}()),
      rate_(options.bytes_per_second),
      session_(options) {
  HubUrl(options_, "");  // refuses what is no address
  if (options_.jobs < 1 || options_.jobs > 256) {
    throw Error(ErrorCode::kInvalidArgument,
                format("jobs: expected 1 to 256, got {}", options_.jobs));
  }
  thread_ = std::thread([this] { Work(); });
}

HubClient::~HubClient() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  session_.Wake();
  thread_.join();
}

std::string HubClient::Describe() const { return HubName(options_); }

// ---- requests, from any thread ----

void HubClient::Submit(std::unique_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back(std::move(job));
  }
  session_.Wake();
}

template <class Result>
Result HubClient::Await(std::future<Outcome<Result>>& result, const KeepGoing& keep_going) {
  while (result.wait_for(kAskWhetherToGoOn) != std::future_status::ready) {
    if (keep_going && !keep_going()) throw Error(ErrorCode::kCancelled, "stopped on request");
  }
  Outcome<Result> outcome = result.get();
  if (outcome.error) outcome.error->Raise();
  return std::move(outcome.value);
}

std::vector<std::optional<RemoteFile>> HubClient::Stat(std::span<const std::string> files,
                                                       const KeepGoing& keep_going) {
  std::vector<std::future<Outcome<std::optional<RemoteFile>>>> results;
  for (const std::string& file : files) {
    auto job = std::make_unique<Job>();
    job->kind = Job::Kind::kStat;
    job->file = file;
    results.push_back(job->stat.get_future());
    Submit(std::move(job));
  }
  std::vector<std::optional<RemoteFile>> found;
  for (auto& result : results) found.push_back(Await(result, keep_going));
  return found;
}

std::string HubClient::Get(const RemoteFile& file, const KeepGoing& keep_going) {
  auto job = std::make_unique<Job>();
  job->kind = Job::Kind::kGet;
  job->file = file.name;
  job->file_bytes = file.bytes;
  std::future<Outcome<std::string>> result = job->whole.get_future();
  Submit(std::move(job));
  return Await(result, keep_going);
}

void HubClient::Fetch(std::span<const RangeRequest> requests) {
  {
    const std::lock_guard lock(mutex_);
    for (const RangeRequest& request : requests) {
      auto job = std::make_unique<Job>();
      job->file = request.file;
      job->file_bytes = request.file_bytes;
      job->is_ahead = request.priority == ReadPriority::kAhead;
      job->segments.push_back({request.range, request.tag, request.listener});
      job->next = request.range.offset;
      (job->is_ahead ? ahead_ : demand_).push_back(std::move(job));
    }
  }
  session_.Wake();
}

bool HubClient::Cancel(RangeListener* listener, uint64_t tag) {
  const std::lock_guard lock(mutex_);
  for (Queue* queue : {&demand_, &ahead_}) {
    for (auto it = queue->begin(); it != queue->end(); ++it) {
      const auto& segments = (*it)->segments;
      if (segments.size() != 1 || segments[0].listener != listener || segments[0].tag != tag) {
        continue;
      }
      queue->erase(it);
      return true;
    }
  }
  return false;
}

void HubClient::Promote(RangeListener* listener, uint64_t tag) {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = ahead_.begin(); it != ahead_.end(); ++it) {
      const auto& segments = (*it)->segments;
      const bool has = std::any_of(segments.begin(), segments.end(), [&](const Job::Segment& s) {
        return s.listener == listener && s.tag == tag;
      });
      if (!has) continue;
      (*it)->is_ahead = false;
      demand_.push_back(std::move(*it));
      ahead_.erase(it);
      break;
    }
  }
  session_.Wake();
}

void HubClient::Drop(RangeListener* listener) {
  std::unique_lock lock(mutex_);
  to_drop_.push_back(listener);
  session_.Wake();
  dropped_.wait(lock, [&] {
    return std::find(to_drop_.begin(), to_drop_.end(), listener) == to_drop_.end();
  });
}

// ---- the thread ----

bool HubClient::IsUnwanted(const Job& job) {
  const std::lock_guard lock(mutex_);
  return stopping_ ||
         std::any_of(job.segments.begin(), job.segments.end(), [&](const Job::Segment& segment) {
           return std::find(to_drop_.begin(), to_drop_.end(), segment.listener) != to_drop_.end();
         });
}

void HubClient::Work() noexcept {
  for (;;) {
    std::vector<RangeListener*> to_drop;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
      to_drop = to_drop_;
    }
    for (RangeListener* listener : to_drop) FailListener(listener);
    if (!to_drop.empty()) {
      const std::lock_guard lock(mutex_);
      for (RangeListener* listener : to_drop) {
        to_drop_.erase(std::find(to_drop_.begin(), to_drop_.end(), listener));
      }
      dropped_.notify_all();
    }
    if (options_.cancelled && options_.cancelled()) FailRanges();
    StartJobs();
    session_.Perform();
    session_.Wait(TimeToWait());
  }
  FailAll();
}

void HubClient::StartJobs() {
  while (session_.num_active() < static_cast<size_t>(options_.jobs)) {
    std::unique_ptr<Job> job = NextJob();
    if (job == nullptr) return;
    Start(std::move(job));
  }
}

// One that has waited long enough, whose address is known or may be asked for.
bool HubClient::MayStart(const Job& job, Clock::time_point now) {
  if (job.not_before > now) return false;
  if (job.kind != Job::Kind::kRange || hub_serves_itself_ || !job.url.empty()) return true;
  const Address& address = addresses_[job.file];
  return !address.url.empty() || address.asking == 0;
}

std::unique_ptr<HubClient::Job> HubClient::TakeReady(Queue& queue, Clock::time_point now) {
  const auto it = std::find_if(queue.begin(), queue.end(),
                               [&](const auto& job) { return MayStart(*job, now); });
  if (it == queue.end()) return nullptr;
  std::unique_ptr<Job> job = std::move(*it);
  queue.erase(it);
  return job;
}

std::unique_ptr<HubClient::Job> HubClient::NextJob() {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (stopping_ || pause_until_ > now) return nullptr;
  if (std::unique_ptr<Job> job = TakeReady(asked_, now)) return job;
  if (std::unique_ptr<Job> job = TakeReady(demand_, now)) {
    Coalesce(*job, demand_);
    return job;
  }
  if (!demand_.empty()) return nullptr;
  // Half of the connections stay free for what is demanded next.
  const auto num_ahead = std::count_if(active_.begin(), active_.end(),
                                       [](const auto& active) { return active->job().is_ahead; });
  if (num_ahead >= std::max(1, options_.jobs / 2)) return nullptr;
  std::unique_ptr<Job> job = TakeReady(ahead_, now);
  if (job != nullptr) Coalesce(*job, ahead_);
  return job;
}

// Takes in the neighbours that follow, while there is more to do than connections.
void HubClient::Coalesce(Job& job, Queue& queue) {
  const size_t free = static_cast<size_t>(options_.jobs) - session_.num_active() - 1;
  bool found = true;
  while (found && queue.size() > free) {
    const auto it = std::find_if(queue.begin(), queue.end(), [&](const auto& other) {
      return other->file == job.file && other->next == job.end() &&
             other->segments.front().range.offset == other->next &&
             other->not_before <= Clock::now() && other->end() - job.next <= kMaxCoalesced;
    });
    found = it != queue.end();
    if (!found) return;
    for (const Job::Segment& segment : (*it)->segments) job.segments.push_back(segment);
    queue.erase(it);
  }
}

void HubClient::Start(std::unique_ptr<Job> job) {
  if (options_.offline) {
    Fail(*job, {ErrorCode::kNetwork, job->file + ": may not be fetched: HF_HUB_OFFLINE is set"});
    return;
  }
  HttpRequest request;
  const std::string hub_url = HubUrl(options_, job->file);
  request.url = job->url.empty() ? hub_url : job->url;
  if (job->kind == Job::Kind::kRange) {
    Address& address = addresses_[job->file];
    if (job->url.empty() && !address.url.empty()) request.url = address.url;
    job->asks = request.url != address.url;
    address.asking += job->asks;
  } else if (job->kind == Job::Kind::kStat && !job->probing) {
    request.method = HttpRequest::Method::kHead;
  }
  const bool of_hub = SameOrigin(request.url, hub_url);
  if (of_hub) request.token = options_.token;
  const Asked asked = job->WhatIsAsked(of_hub, !request.token.empty());
  request.range = asked.range;
  auto active = std::make_unique<Active>(*this, std::move(job), request, asked);
  session_.Start(request, active.get());
  active_.push_back(std::move(active));
}

// The address that a job found for itself is right, and serves it: from here on others may use it.
void HubClient::Settle(Job& job, const std::string& url) {
  job.url.clear();
  if (!std::exchange(job.asks, false)) return;
  Address& address = addresses_[job.file];
  --address.asking;
  address.url = url;
  if (url == HubUrl(options_, job.file)) hub_serves_itself_ = true;
}

void HubClient::OnEnd(Active& active, const HttpEnd& end) {
  const auto it = std::find_if(active_.begin(), active_.end(),
                               [&](const auto& a) { return a.get() == &active; });
  const std::unique_ptr<Active> mine = std::move(*it);
  active_.erase(it);
  std::unique_ptr<Job> job = active.TakeJob();
  const std::string& url = active.request().url;
  const HttpResponse& response = active.response();
  Judgement judgement;
  if (active.judgement()) judgement = *active.judgement();

  addresses_[job->file].asking -= std::exchange(job->asks, false);
  // However the connection ended: every byte was delivered.
  if (job->kind == Job::Kind::kRange && job->segments.empty()) return;
  if (active.listener_refused()) {
    Requeue(std::move(job));
    return;
  }
  if (!active.judgement() || (judgement.verdict == Verdict::kGood && !end.complete)) {
    judgement = {end.transient ? Verdict::kRetry : Verdict::kGiveUp,
                 ErrorCode::kNetwork,
                 end.reason,
                 {},
                 false};
  } else if (judgement.verdict == Verdict::kFollow) {
    Follow(std::move(job), response, url);
    return;
  } else if (job->kind == Job::Kind::kStat && response.status == 404 && active.asked().of_hub) {
    job->stat.set_value({});
    return;
  }
  const bool head_refused = job->kind == Job::Kind::kStat && !job->probing &&
                            (response.status == 405 || response.status == 501);
  if (judgement.verdict != Verdict::kGood && !head_refused) {
    TryAgain(std::move(job), judgement, url);
    return;
  }
  if (job->kind == Job::Kind::kStat) {
    RemoteFile& found = job->found;
    found.name = job->file;
    if (found.commit.empty()) found.commit = response.commit;
    if (found.sha256.empty() && LooksLikeSha256(response.linked_etag)) {
      found.sha256 = response.linked_etag;
    }
    std::optional<uint64_t> bytes = response.linked_size;
    if (!bytes && job->probing) bytes = response.content_range->total;
    if (!bytes && !job->probing && !head_refused) bytes = response.content_length;
    if (!bytes && !job->probing) {
      job->probing = true;
      Requeue(std::move(job));
      return;
    }
    if (!bytes) {
      TryAgain(std::move(job),
               {Verdict::kRetryFewTimes,
                ErrorCode::kNetwork,
                "did not say how large the file is",
                {},
                false},
               url);
      return;
    }
    found.bytes = *bytes;
  }
  Conclude(std::move(job));
}

void HubClient::Conclude(std::unique_ptr<Job> job) {
  const auto again = [&](std::string reason) {
    TryAgain(std::move(job), {Verdict::kRetry, ErrorCode::kNetwork, std::move(reason), {}, false},
             "");
  };
  switch (job->kind) {
    case Job::Kind::kStat:
      job->stat.set_value({job->found});
      return;
    case Job::Kind::kGet:
      if (job->body.size() != *job->file_bytes) {
        again(format("{} bytes came, expected {}", job->body.size(), *job->file_bytes));
        return;
      }
      job->whole.set_value({std::move(job->body)});
      return;
    case Job::Kind::kRange:
      again(format("the answer ended {} bytes early", job->end() - job->next));
  }
}

void HubClient::Follow(std::unique_ptr<Job> job, const HttpResponse& response,
                       const std::string& from) {
  const std::string target = ResolveLocation(from, response.location);
  if (target.empty() || ++job->hops > kMaxHops) {
    TryAgain(std::move(job),
             {Verdict::kRetryFewTimes,
              ErrorCode::kNetwork,
              target.empty() ? "redirected to something that is no address"
                             : format("redirected {} times", kMaxHops),
              {},
              false},
             from);
    return;
  }
  job->url = target;
  if (job->kind != Job::Kind::kStat) {
    Requeue(std::move(job));
    return;
  }
  RemoteFile& found = job->found;
  if (!response.commit.empty()) found.commit = response.commit;
  if (LooksLikeSha256(response.linked_etag)) found.sha256 = response.linked_etag;
  if (response.linked_size) {
    found.name = job->file;
    found.bytes = *response.linked_size;
    // A redirect within the hub leads to another name of the file, not to its bytes.
    if (!SameOrigin(target, from)) {
      Conclude(std::move(job));
      return;
    }
  }
  // A signed address is for GET only.
  if (!SameOrigin(target, HubUrl(options_, job->file))) job->probing = true;
  Requeue(std::move(job));
}

void HubClient::TryAgain(std::unique_ptr<Job> job, const Judgement& judgement,
                         const std::string& url) {
  const Clock::time_point now = Clock::now();
  const std::string hub_url = HubUrl(options_, job->file);
  if (judgement.verdict == Verdict::kResolveAgain || judgement.verdict == Verdict::kRetryFewTimes) {
    // The next try asks the hub itself and uses what it is told before anybody else does: of links
    // that serve a few requests each, others could leave it none, time and again.
    Address& address = addresses_[job->file];
    if (address.url == url) address.url.clear();
    job->url = hub_url;
    job->hops = 0;
  }
  const std::string where = PrintableUrl(url.empty() ? hub_url : url);
  const std::optional<double> delay = job->retry.NextDelay(options_, judgement, now, random_);
  if (!delay) {
    const int tries = job->retry.attempts();
    Fail(*job,
         {judgement.code, format("{}: {}{}", where, judgement.reason,
                                 tries > 1 ? format(" (tried {} times)", tries) : std::string())});
    return;
  }
  if (notice_ && *delay > 0 && IsPowerOfTwo(job->retry.attempts())) {
    notice_(format("{}: {}; trying again in {:.1f} s", where, judgement.reason, *delay));
  }
  job->not_before =
      now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*delay));
  if (judgement.for_all) pause_until_ = std::max(pause_until_, job->not_before);
  Requeue(std::move(job));
}

void HubClient::Requeue(std::unique_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  Queue& queue = job->kind != Job::Kind::kRange ? asked_ : job->is_ahead ? ahead_ : demand_;
  queue.push_front(std::move(job));
}

void HubClient::Fail(Job& job, const CapturedError& error) {
  switch (job.kind) {
    case Job::Kind::kStat:
      job.stat.set_value({{}, error});
      return;
    case Job::Kind::kGet:
      job.whole.set_value({{}, error});
      return;
    case Job::Kind::kRange:
      for (const Job::Segment& segment : job.segments) {
        segment.listener->OnRangeFailed(segment.tag, ErrorOf(error.code, error.message));
      }
  }
}

void HubClient::FailListener(RangeListener* listener) {
  std::vector<std::unique_ptr<Job>> jobs;
  const auto concerns = [&](const Job& job) {
    return std::any_of(job.segments.begin(), job.segments.end(),
                       [&](const Job::Segment& s) { return s.listener == listener; });
  };
  for (size_t i = active_.size(); i-- > 0;) {
    if (!concerns(active_[i]->job())) continue;
    session_.Abort(active_[i].get());
    jobs.push_back(active_[i]->TakeJob());
    addresses_[jobs.back()->file].asking -= jobs.back()->asks;
    active_.erase(active_.begin() + static_cast<ptrdiff_t>(i));
  }
  {
    const std::lock_guard lock(mutex_);
    for (Queue* queue : {&demand_, &ahead_}) {
      for (size_t i = queue->size(); i-- > 0;) {
        if (!concerns(*(*queue)[i])) continue;
        jobs.push_back(std::move((*queue)[i]));
        queue->erase(queue->begin() + static_cast<ptrdiff_t>(i));
      }
    }
  }
  const std::exception_ptr error = ErrorOf(ErrorCode::kCancelled, "stopped on request");
  for (std::unique_ptr<Job>& job : jobs) {
    uint64_t next = job->next;
    for (const Job::Segment& segment : job->segments) {
      if (segment.listener == listener) {
        segment.listener->OnRangeFailed(segment.tag, error);
      } else {
        // A neighbour of somebody else's goes on by itself.
        auto other = std::make_unique<Job>();
        other->file = job->file;
        other->file_bytes = job->file_bytes;
        other->is_ahead = job->is_ahead;
        other->segments.push_back(segment);
        other->next = std::max(next, segment.range.offset);
        Requeue(std::move(other));
      }
      next = segment.range.end();
    }
  }
}

void HubClient::FailRanges() {
  std::set<RangeListener*> listeners;
  const auto note = [&](const Job& job) {
    for (const Job::Segment& segment : job.segments) listeners.insert(segment.listener);
  };
  for (const auto& active : active_) note(active->job());
  {
    const std::lock_guard lock(mutex_);
    for (const Queue* queue : {&demand_, &ahead_}) {
      for (const std::unique_ptr<Job>& job : *queue) note(*job);
    }
  }
  for (RangeListener* listener : listeners) FailListener(listener);
}

void HubClient::FailAll() {
  std::vector<std::unique_ptr<Job>> jobs;
  for (const auto& active : active_) {
    session_.Abort(active.get());
    jobs.push_back(active->TakeJob());
  }
  active_.clear();
  std::unique_lock lock(mutex_);
  for (Queue* queue : {&asked_, &demand_, &ahead_}) {
    for (std::unique_ptr<Job>& job : *queue) jobs.push_back(std::move(job));
    queue->clear();
  }
  lock.unlock();
  for (const std::unique_ptr<Job>& job : jobs) {
    Fail(*job, {ErrorCode::kCancelled, "stopped on request"});
  }
  lock.lock();
  to_drop_.clear();
  dropped_.notify_all();
}

// Until the first job may start that waits for its time.
std::chrono::milliseconds HubClient::TimeToWait() {
  const Clock::time_point now = Clock::now();
  Clock::time_point next = now + kLongestWait;
  const std::lock_guard lock(mutex_);
  if (stopping_ || !to_drop_.empty()) return std::chrono::milliseconds(0);
  if (session_.num_active() < static_cast<size_t>(options_.jobs)) {
    for (const Queue* queue : {&asked_, &demand_, &ahead_}) {
      for (const std::unique_ptr<Job>& job : *queue) {
        next = std::min(next, std::max({job->not_before, pause_until_, now}));
      }
    }
    // What could start now waits for an address: that request wakes the session.
    if (next <= now) next = now + (active_.empty() ? kLongestWait / 1000 : kLongestWait / 100);
  }
  return std::chrono::ceil<std::chrono::milliseconds>(next - now);
}

}  // namespace deltafin
