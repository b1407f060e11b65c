// The read queue in its plainest form, for tests that are about its users: what was asked for is
// read by one ReadAt of exactly that size, so that a test's file system sees each read as it is.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "io/read_queue.h"

namespace deltafin {

class SimpleReadQueue final : public ReadQueue {
 public:
  explicit SimpleReadQueue(int num_threads = 8) {
    for (int i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { Loop(stop); });
    }
  }
  ~SimpleReadQueue() override {
    std::unique_lock lock(mu_);
    work_.wait(lock, [&] { return demand_.empty() && ahead_.empty(); });
    for (std::jthread& thread : threads_) thread.request_stop();
  }

  void Submit(std::span<const ReadRequest> requests) override {
    const std::lock_guard lock(mu_);
    for (const ReadRequest& request : requests) {
      (request.priority == ReadPriority::kDemand ? demand_ : ahead_).push_back(request);
    }
    work_.notify_all();
  }
  bool Cancel(ReadListener* listener, uint64_t tag) override {
    const std::lock_guard lock(mu_);
    return Take(demand_, listener, tag).file != nullptr ||
           Take(ahead_, listener, tag).file != nullptr;
  }
  void Promote(ReadListener* listener, uint64_t tag) override {
    const std::lock_guard lock(mu_);
    const ReadRequest request = Take(ahead_, listener, tag);
    if (request.file == nullptr) return;
    demand_.push_back(request);
    ++num_promoted_;
  }
  std::string Describe() const override { return "for tests"; }

  // No read starts until it is opened again.
  void set_closed(bool closed) {
    const std::lock_guard lock(mu_);
    closed_ = closed;
    work_.notify_all();
  }
  size_t num_waiting(ReadPriority priority) {
    const std::lock_guard lock(mu_);
    return (priority == ReadPriority::kDemand ? demand_ : ahead_).size();
  }
  int num_promoted() {
    const std::lock_guard lock(mu_);
    return num_promoted_;
  }

 private:
  // A request without a file when there is no such one.
  static ReadRequest Take(std::deque<ReadRequest>& queue, ReadListener* listener, uint64_t tag) {
    const auto it = std::find_if(queue.begin(), queue.end(), [&](const ReadRequest& request) {
      return request.listener == listener && request.tag == tag;
    });
    if (it == queue.end()) return {};
    const ReadRequest request = *it;
    queue.erase(it);
    return request;
  }

  void Loop(const std::stop_token& stop) {
    for (;;) {
      ReadRequest request;
      {
        std::unique_lock lock(mu_);
        const bool has_work = work_.wait(
            lock, stop, [&] { return !closed_ && !(demand_.empty() && ahead_.empty()); });
        if (!has_work) return;
        std::deque<ReadRequest>& queue = demand_.empty() ? ahead_ : demand_;
        request = queue.front();
        queue.pop_front();
        work_.notify_all();
      }
      // Somewhere inside the buffer, as with direct reads.
      const std::span<std::byte> data(request.buffer + request.offset % kReadAlignment,
                                      request.bytes);
      try {
        request.file->ReadAt(request.offset, data);
      } catch (...) {
        request.listener->OnReadFailed(request.tag, std::current_exception());
        continue;
      }
      request.listener->OnRead(request.tag, data);
    }
  }

  std::mutex mu_;
  std::condition_variable_any work_;
  std::deque<ReadRequest> demand_;
  std::deque<ReadRequest> ahead_;
  bool closed_ = false;
  int num_promoted_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace deltafin
