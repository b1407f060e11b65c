#include "store/streamed_queue.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <optional>
#include <utility>

#include "base/captured_error.h"

namespace deltafin {
namespace {

// Waits for several fetches.
class Latch {
 public:
  explicit Latch(size_t count) : left_(count) {}
  void Down(const std::exception_ptr& error) {
    const std::lock_guard lock(mutex_);
    if (error != nullptr && !error_) error_ = Capture(error);
    if (--left_ == 0) done_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return left_ == 0; });
    if (error_) error_->Raise();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  size_t left_;
  std::optional<CapturedError> error_;
};

class StreamedReadQueue final : public ReadQueue {
 public:
  StreamedReadQueue(std::unique_ptr<ReadQueue> queue, RangeFiller& filler)
      : filler_(filler), queue_(std::move(queue)) {}

  ~StreamedReadQueue() override {
    filler_.DropAll();
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [this] { return jobs_.empty() && telling_ == 0; });
  }

  void Submit(std::span<const ReadRequest> requests) override {
    std::vector<ReadRequest> local;
    std::vector<RangeFiller::Fetch> fetches;
    std::vector<std::shared_ptr<Job>> jobs;  // of each fetch
    for (const ReadRequest& request : requests) {
      const auto* file = dynamic_cast<const StreamedFile*>(request.file);
      std::vector<ByteRange> gaps;
      if (file != nullptr) gaps = file->Missing({request.offset, request.bytes});
      if (gaps.empty()) {
        local.push_back(request);
        continue;
      }
      auto job = std::make_shared<Job>();
      job->request = request;
      job->file = file;
      job->gaps = std::move(gaps);
      job->left = job->gaps.size();
      for (const ByteRange& gap : job->gaps) {
        fetches.push_back(
            {file->shard(), gap, BytesOf(request) + (gap.offset - request.offset), request.priority,
             [this, job](std::exception_ptr error) { OnGap(job, std::move(error)); }});
        jobs.push_back(job);
      }
      const std::lock_guard lock(mutex_);
      jobs_[{request.listener, request.tag}] = job;
    }
    if (!local.empty()) queue_->Submit(local);
    if (fetches.empty()) return;
    const std::vector<uint64_t> ids = filler_.Start(std::move(fetches));
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < ids.size(); ++i) jobs[i]->ids.push_back(ids[i]);
  }

  bool Cancel(ReadListener* listener, uint64_t tag) override {
    const std::shared_ptr<Job> job = Find(listener, tag);
    if (job == nullptr) return queue_->Cancel(listener, tag);
    // Of several parts some may have started.
    if (job->ids.size() != 1 || !filler_.Cancel(job->ids[0])) return false;
    Erase(*job);
    return true;
  }

  void Promote(ReadListener* listener, uint64_t tag) override {
    const std::shared_ptr<Job> job = Find(listener, tag);
    if (job == nullptr) {
      queue_->Promote(listener, tag);
      return;
    }
    for (const uint64_t id : job->ids) filler_.Promote(id);
  }

  ReadCounters counters() const override { return queue_->counters(); }  // of the disk
  std::string Describe() const override { return queue_->Describe() + ", the rest from the hub"; }

 private:
  using Key = std::pair<ReadListener*, uint64_t>;
  // A read of which something is missing.
  struct Job {
    ReadRequest request;
    const StreamedFile* file = nullptr;
    std::vector<ByteRange> gaps;
    std::vector<uint64_t> ids;  // of the fetches; empty until they were started
    size_t left = 0;            // guarded by mutex_, as is the next one
    std::exception_ptr error;
  };

  static std::byte* BytesOf(const ReadRequest& request) {
    return request.buffer + request.offset % kReadAlignment;
  }

  std::shared_ptr<Job> Find(ReadListener* listener, uint64_t tag) {
    const std::lock_guard lock(mutex_);
    const auto it = jobs_.find({listener, tag});
    return it == jobs_.end() ? nullptr : it->second;
  }

  void Erase(const Job& job) {
    const std::lock_guard lock(mutex_);
    jobs_.erase({job.request.listener, job.request.tag});
    all_done_.notify_all();
  }

  void OnGap(const std::shared_ptr<Job>& job, std::exception_ptr error) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (error != nullptr && job->error == nullptr) job->error = std::move(error);
      if (--job->left > 0) return;
      // The listener may submit the same tag again as soon as it has heard.
      jobs_.erase({job->request.listener, job->request.tag});
      ++telling_;
    }
    Finish(*job);
    const std::lock_guard lock(mutex_);
    --telling_;
    all_done_.notify_all();
  }

  static void Finish(const Job& job) noexcept {
    const ReadRequest& r = job.request;
    std::exception_ptr error = job.error;
    const std::span<std::byte> data(BytesOf(r), r.bytes);
    if (error == nullptr) {
      try {
        job.file->ReadAround(job.gaps, r.offset, data);
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (error != nullptr) {
      r.listener->OnReadFailed(r.tag, error);
    } else {
      r.listener->OnRead(r.tag, data);
    }
  }

  RangeFiller& filler_;
  std::mutex mutex_;
  std::condition_variable all_done_;
  std::map<Key, std::shared_ptr<Job>> jobs_;
  int telling_ = 0;
  const std::unique_ptr<ReadQueue> queue_;  // ends first: its reads may be of files with holes
};

}  // namespace

StreamedFile::StreamedFile(FileSystem& fs, std::unique_ptr<ReadableFile> file,
                           std::shared_ptr<ShardPresence> shard, RangeFiller& filler)
    : fs_(fs), file_(std::move(file)), shard_(std::move(shard)), filler_(filler) {}

std::vector<ByteRange> StreamedFile::Missing(ByteRange range) const {
  if (shard_->Contains(range)) return {};
  if (!shard_->can_write()) {
    try {
      shard_->Refresh(fs_);
    } catch (const Error&) {
      // As if nothing had been brought: it is fetched, and who waits for it hears how that ends.
    }
  }
  return shard_->Missing(range);
}

void StreamedFile::ReadAround(const std::vector<ByteRange>& gaps, uint64_t offset,
                              std::span<std::byte> dst) const {
  uint64_t at = offset;
  const auto read_until = [&](uint64_t end) {
    if (end > at) file_->ReadAt(at, dst.subspan(at - offset, end - at));
  };
  for (const ByteRange& gap : gaps) {
    read_until(gap.offset);
    at = gap.end();
  }
  read_until(offset + dst.size());
}

void StreamedFile::ReadAt(uint64_t offset, std::span<std::byte> dst) const {
  std::vector<ByteRange> gaps;
  // What lies beyond the end is the file's own error.
  if (offset <= size() && dst.size() <= size() - offset) gaps = Missing({offset, dst.size()});
  if (!gaps.empty()) {
    Latch latch(gaps.size());
    std::vector<RangeFiller::Fetch> fetches;
    for (const ByteRange& gap : gaps) {
      fetches.push_back({shard_, gap, dst.data() + (gap.offset - offset), ReadPriority::kDemand,
                         [&latch](const std::exception_ptr& error) { latch.Down(error); }});
    }
    filler_.Start(std::move(fetches));
    latch.Wait();
  }
  ReadAround(gaps, offset, dst);
}

std::unique_ptr<ReadQueue> MakeStreamedReadQueue(std::unique_ptr<ReadQueue> queue,
                                                 RangeFiller& filler) {
  return std::make_unique<StreamedReadQueue>(std::move(queue), filler);
}

}  // namespace deltafin
