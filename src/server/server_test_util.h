// For tests of the server: a client on plain sockets, and a scheduler and an engine that say what
// the test wants.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "deltafin/engine.h"
#include "deltafin/scheduler.h"
#include "deltafin/session.h"

namespace deltafin {

inline const Tokenizer& TestTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::Load(DELTAFIN_SOURCE_DIR "/models/k3-nano");
  return *tokenizer;
}

// One connection to 127.0.0.1.
class TestClient {
 public:
  explicit TestClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~TestClient() { Close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  void Close() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }
  void Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t more = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (more <= 0) return;  // the server has hung up, which the answer shows
      sent += static_cast<size_t>(more);
    }
  }
  // Reads until `done` says so, the server closes, or nothing comes for 20 seconds.
  std::string ReadUntil(const std::function<bool(const std::string&)>& done) {
    char buffer[4096];
    while (!done(received_)) {
      pollfd ready{socket_, POLLIN, 0};
      if (poll(&ready, 1, 20000) <= 0) break;
      const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
      if (count <= 0) {
        closed_ = true;
        break;
      }
      received_.append(buffer, static_cast<size_t>(count));
    }
    return std::exchange(received_, {});
  }
  std::string ReadUntil(const std::string& text) {
    return ReadUntil([&](const std::string& all) { return all.find(text) != std::string::npos; });
  }
  std::string ReadToClose() {
    return ReadUntil([](const std::string&) { return false; });
  }
  // A whole response with a Content-Length.
  std::string ReadResponse() {
    return ReadUntil([](const std::string& all) {
      const size_t head = all.find("\r\n\r\n");
      const size_t length = all.find("Content-Length: ");
      if (head == std::string::npos || length == std::string::npos) return false;
      return all.size() >= head + 4 + std::stoul(all.substr(length + 16));
    });
  }
  bool closed() const { return closed_; }

 private:
  int socket_;
  std::string received_;
  bool closed_ = false;
};

inline std::string Get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}
inline std::string Post(const std::string& path, const std::string& body,
                        const std::string& headers = "Content-Type: application/json\r\n") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
inline std::string BodyOf(const std::string& response) {
  return response.substr(std::min(response.size(), response.find("\r\n\r\n") + 4));
}

class FakeEngine final : public Engine {
 public:
  FakeEngine() {
    info_.name = "fake";
    info_.context_tokens = 2000;
    info_.experts_per_token = 2;
    stops_ = {TestTokenizer().SpecialId("<|end_of_msg|>")};
  }
  const ModelInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return TestTokenizer(); }
  const std::vector<TokenId>& stop_tokens() const override { return stops_; }
  std::vector<std::string> Describe() const override { return {"a model of the tests"}; }
  std::vector<PlanLine> plan() const override { return {{"budget", 1, ""}}; }
  std::unique_ptr<Session> NewSession() override { return nullptr; }

 private:
  ModelInfo info_;
  std::vector<TokenId> stops_;
};

// Runs jobs one token each in turn. A job's tokens are what `script` says; a token that the job
// does not allow is replaced by the first one that it does.
class FakeScheduler final : public Scheduler {
 public:
  using Script = std::function<std::vector<TokenId>(const Job&)>;
  FakeScheduler(Script script, size_t max_jobs) : script_(std::move(script)), max_jobs_(max_jobs) {
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeScheduler() override {
    Stop(0);
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  FakeScheduler(const FakeScheduler&) = delete;
  FakeScheduler& operator=(const FakeScheduler&) = delete;

  // No job gets a token while it is set.
  void Pause(bool paused) {
    const std::lock_guard lock(mutex_);
    paused_ = paused;
    changed_.notify_all();
  }
  void FailNext(const std::string& error) {
    const std::lock_guard lock(mutex_);
    error_ = error;
  }
  std::vector<Job> TakeSubmitted() {
    const std::lock_guard lock(mutex_);
    return std::exchange(submitted_, {});
  }

  std::optional<JobId> Submit(Job job) override {
    const std::lock_guard lock(mutex_);
    if (stopped_ || running_.size() >= max_jobs_) return std::nullopt;
    Job copy = job;
    copy.allows = nullptr;  // what the server keeps alive would live on in the list
    copy.on_token = nullptr;
    copy.on_prompt_token = nullptr;
    copy.on_progress = nullptr;
    copy.on_end = nullptr;
    submitted_.push_back(std::move(copy));
    Running& running = running_.emplace_back();
    running.id = ++last_id_;
    running.script = script_(job);
    running.job = std::move(job);
    changed_.notify_all();
    return running.id;
  }
  void Cancel(JobId id) override {
    const std::lock_guard lock(mutex_);
    for (Running& running : running_) {
      if (running.id == id) running.cancelled = true;
    }
    changed_.notify_all();
  }
  SchedulerStats stats() const override {
    const std::lock_guard lock(mutex_);
    SchedulerStats stats = stats_;
    stats.running = static_cast<int64_t>(running_.size());
    return stats;
  }
  std::vector<LayerPicks> last_picks() const override { return {{1, {3, 5}}, {2, {0, 7}}}; }
  void Stop(double seconds) override {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    idle_.wait_for(lock, std::chrono::duration<double>(seconds),
                   [this] { return running_.empty(); });
    for (Running& running : running_) running.cancelled = true;
    changed_.notify_all();
    idle_.wait(lock, [this] { return running_.empty(); });
  }

 private:
  struct Running {
    JobId id = 0;
    Job job;
    std::vector<TokenId> script;
    size_t position = 0;
    bool cancelled = false;
    bool prompt_is_shown = false;
  };

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] {
        const bool has_work =
            std::any_of(running_.begin(), running_.end(),
                        [this](const Running& r) { return r.cancelled || !paused_; });
        return quit_ || has_work;
      });
      if (quit_) return;
      for (auto it = running_.begin(); it != running_.end();) {
        if (paused_ && !it->cancelled) {
          ++it;
          continue;
        }
        const std::string error = std::exchange(error_, {});
        lock.unlock();
        std::optional<JobResult> result = Advance(*it, error);
        if (result) it->job.on_end(*result);
        lock.lock();
        if (!result) {
          ++it;
          continue;
        }
        ++stats_.finished_jobs;
        Running ended = std::move(*it);
        it = running_.erase(it);
        if (running_.empty()) idle_.notify_all();
        lock.unlock();
        ended.job = {};  // what the callbacks hold may end here, and call back
        lock.lock();
      }
    }
  }

  std::optional<JobResult> Advance(Running& running, const std::string& error) {
    const Job& job = running.job;
    JobResult result;
    result.prompt_tokens = static_cast<int64_t>(job.prompt.size());
    result.new_tokens = static_cast<int64_t>(running.position);
    result.error = error;
    result.finish_reason = FinishReason::kCancelled;
    if (running.cancelled || !error.empty()) return result;
    if (job.prompt_logprobs && !std::exchange(running.prompt_is_shown, true)) ShowPrompt(job);
    result.finish_reason = FinishReason::kLength;
    if (result.new_tokens >= job.max_new_tokens) return result;
    JobToken token;
    token.id = running.position < running.script.size()
                   ? running.script[running.position]
                   : TestTokenizer().SpecialId("<|end_of_msg|>");
    if (job.allows && !job.allows(token.id)) {
      for (token.id = 0; !job.allows(token.id);) ++token.id;
    }
    if (job.top_logprobs >= 0) token.logprobs = LogprobsOf(token.id, job.top_logprobs);
    ++running.position;
    ++result.new_tokens;
    {
      const std::lock_guard lock(mutex_);
      ++stats_.passes;
      ++stats_.new_tokens;
    }
    if (!job.on_token(token)) {
      result.finish_reason = FinishReason::kCancelled;
      return result;
    }
    const bool is_stop = token.id == TestTokenizer().SpecialId("<|end_of_msg|>");
    if (!is_stop || !job.stop_at_stop_tokens) return std::nullopt;
    result.finish_reason = FinishReason::kStop;
    return result;
  }

  static PositionLogprobs LogprobsOf(TokenId id, int64_t top) {
    PositionLogprobs logprobs;
    logprobs.chosen = -0.5;
    for (int64_t i = 0; i < top; ++i) logprobs.top.push_back({id, -0.5 - static_cast<double>(i)});
    return logprobs;
  }

  static void ShowPrompt(const Job& job) {
    for (size_t i = 0; i < job.prompt.size(); ++i) {
      JobToken token{job.prompt[i], std::nullopt};
      if (i > 0) token.logprobs = LogprobsOf(token.id, job.top_logprobs);
      job.on_prompt_token(token);
    }
  }

  const Script script_;
  const size_t max_jobs_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::list<Running> running_;
  std::vector<Job> submitted_;
  SchedulerStats stats_;
  std::string error_;
  JobId last_id_ = 0;
  bool paused_ = false;
  bool stopped_ = false;
  bool quit_ = false;
  std::thread thread_;
};

}  // namespace deltafin
