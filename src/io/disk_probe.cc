#include "io/disk_probe.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "base/seconds_since.h"
#include "io/system_file.h"

namespace deltafin {
namespace {

using Clock = std::chrono::steady_clock;
using PageBuffer = AlignedBuffer<std::byte, kReadAlignment>;

constexpr double kCloseEnough = 0.95;
constexpr int kMaxDraws = 64;

// The stretch of the file without holes that begins at or after `offset`, as far as the file system
// can tell; wraps around at the end. Empty when the file is all hole.
struct Stretch {
  uint64_t begin = 0;
  uint64_t end = 0;
};
Stretch StretchAfter(const ReadableFile& file, uint64_t offset) {
  const int descriptor = file.Descriptor(ReadMode::kBuffered);
  off_t begin = ::lseek(descriptor, static_cast<off_t>(offset), SEEK_DATA);
  if (begin < 0 && errno == ENXIO) begin = ::lseek(descriptor, 0, SEEK_DATA);
  if (begin < 0) return {};
  const off_t end = ::lseek(descriptor, begin, SEEK_HOLE);
  return {static_cast<uint64_t>(begin), end < begin ? 0 : static_cast<uint64_t>(end)};
}

// Hears of the reads of one measurement and gives their buffers back.
class Round final : public ReadListener {
 public:
  void OnRead(uint64_t tag, std::span<const std::byte>) noexcept override { Add(tag, nullptr); }
  void OnReadFailed(uint64_t tag, std::exception_ptr error) noexcept override {
    Add(tag, std::move(error));
  }

  // Waits for the next read that is finished; its tag.
  uint64_t Wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return !tags_.empty(); });
    const uint64_t tag = tags_.back();
    tags_.pop_back();
    return tag;
  }
  std::exception_ptr error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // So that telling needs no memory.
  void Reserve(size_t count) { tags_.reserve(count); }

 private:
  void Add(uint64_t tag, std::exception_ptr error) noexcept {
    const std::lock_guard lock(mutex_);
    tags_.push_back(tag);
    if (error != nullptr) error_ = std::move(error);
    // Under the lock: this may be gone once the last read was seen.
    finished_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable finished_;
  std::vector<uint64_t> tags_;
  std::exception_ptr error_;
};

}  // namespace

DiskProbe::DiskProbe(const std::vector<const ReadableFile*>& files, uint64_t span_bytes,
                     uint64_t seed)
    : span_bytes_(span_bytes), random_(seed) {
  DF_CHECK(span_bytes >= 1);
  uint64_t end = 0;
  for (const ReadableFile* file : files) {
    if (file->Descriptor(ReadMode::kBuffered) < 0 || file->size() < span_bytes) continue;
    end += file->size() - span_bytes + 1;
    files_.push_back(file);
    ends_.push_back(end);
  }
}

bool DiskProbe::DrawOne(Span* span) {
  if (files_.empty()) return false;
  for (int draw = 0; draw < kMaxDraws; ++draw) {
    const uint64_t place = random_() % ends_.back();
    const size_t i =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin());
    const uint64_t offset = place - (i == 0 ? 0 : ends_[i - 1]);
    const Stretch data = StretchAfter(*files_[i], offset);
    if (data.end < data.begin + span_bytes_) continue;
    const bool moved = data.begin != offset;
    *span = {files_[i],
             moved ? data.begin + random_() % (data.end - data.begin - span_bytes_ + 1) : offset};
    // A page at the edge may have bytes that a read would wait for the network for.
    if (files_[i]->Holds(span->offset, span_bytes_)) return true;
  }
  return false;
}

bool DiskProbe::has_data() {
  Span span = {};
  return DrawOne(&span);
}

std::vector<DiskProbe::Span> DiskProbe::Draw(int num_spans) {
  std::vector<Span> spans(static_cast<size_t>(num_spans));
  for (Span& span : spans) {
    if (!DrawOne(&span)) throw Error(ErrorCode::kNotFound, "no span of the files is on the disk");
  }
  return spans;
}

void DiskProbe::Drop(const std::vector<Span>& spans) const {
  if (keeps_page_cache_) return;
  for (const Span& span : spans) {
    DropFromCache(span.file->Descriptor(ReadMode::kBuffered), span.offset, span_bytes_);
  }
}

double DiskProbe::Read(ReadQueue& queue, int num_spans, int at_once) {
  DF_CHECK(1 <= at_once && at_once <= num_spans);
  const std::vector<Span> spans = Draw(num_spans);
  const size_t buffer_bytes = ReadBufferBytes(span_bytes_);
  PageBuffer memory(buffer_bytes * static_cast<size_t>(at_once));
  Round round;
  round.Reserve(spans.size());
  // The tag says which buffer.
  const auto request_of = [&](size_t span, uint64_t tag) {
    return ReadRequest{spans[span].file,
                       spans[span].offset,
                       span_bytes_,
                       memory.data() + tag * buffer_bytes,
                       ReadPriority::kDemand,
                       tag,
                       &round};
  };
  Drop(spans);
  const Clock::time_point begin = Clock::now();
  std::vector<ReadRequest> first;
  size_t next = 0;
  for (; next < static_cast<size_t>(at_once); ++next) first.push_back(request_of(next, next));
  queue.Submit(first);
  for (size_t finished = 0; finished < spans.size(); ++finished) {
    const uint64_t tag = round.Wait();
    if (next == spans.size()) continue;
    const ReadRequest request = request_of(next++, tag);
    queue.Submit(std::span(&request, 1));
  }
  const double seconds = SecondsSince(begin);
  Drop(spans);
  if (round.error() != nullptr) std::rethrow_exception(round.error());
  return seconds;
}

double DiskProbe::ReadPlainly(ReadMode mode, int num_threads, uint64_t piece_bytes, int num_spans) {
  const std::vector<Span> spans = Draw(num_spans);
  const uint64_t step = ReadBufferBytes(piece_bytes) - kReadAlignment;  // whole pages
  const uint64_t pieces_per_span = (span_bytes_ + step - 1) / step;
  const size_t buffer_bytes = step + kReadAlignment;
  PageBuffer memory(buffer_bytes * static_cast<size_t>(num_threads));
  std::atomic<uint64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto loop = [&](std::byte* buffer) noexcept {
    try {
      for (uint64_t i; (i = next++) < spans.size() * pieces_per_span;) {
        const Span& span = spans[i / pieces_per_span];
        const uint64_t begin = span.offset + i % pieces_per_span * step;
        const uint64_t end = std::min(begin + step, span.offset + span_bytes_);
        const uint64_t skip = begin % kReadAlignment;
        if (mode == ReadMode::kDirect) {
          const uint64_t needed = end - begin + skip;
          const uint64_t pages = (needed + kReadAlignment - 1) / kReadAlignment;
          span.file->ReadDirect(begin - skip, {buffer, pages * kReadAlignment}, needed);
        } else {
          span.file->ReadAt(begin, {buffer + skip, end - begin});
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  };
  Drop(spans);
  const Clock::time_point begin = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < num_threads; ++i) {
      threads.emplace_back(loop, memory.data() + static_cast<size_t>(i) * buffer_bytes);
    }
  }
  const double seconds = SecondsSince(begin);
  Drop(spans);
  if (error != nullptr) std::rethrow_exception(error);
  return seconds;
}

double ReadMeasurement::best() const {
  return rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end());
}

double ReadMeasurement::median() const {
  if (rates.empty()) return 0;
  std::vector<double> sorted = rates;
  std::sort(sorted.begin(), sorted.end());
  return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
}

std::vector<ReadQueueOptions> QuickCandidates() {
  constexpr uint64_t kSplit = 1 << 20;
  return {{ReadEngine::kThreads, ReadMode::kDirect, 8, kSplit, nullptr},
          {ReadEngine::kIoUring, ReadMode::kDirect, 32, kSplit, nullptr},
          {ReadEngine::kThreads, ReadMode::kBuffered, 8, kSplit, nullptr},
          {ReadEngine::kIoUring, ReadMode::kBuffered, 32, kSplit, nullptr}};
}

std::vector<ReadMeasurement> MeasureReads(DiskProbe& probe,
                                          const std::vector<ReadQueueOptions>& candidates,
                                          int num_spans, int at_once, double seconds) {
  std::vector<ReadMeasurement> measurements;
  std::vector<std::unique_ptr<ReadQueue>> queues;
  for (const ReadQueueOptions& options : candidates) {
    measurements.push_back({options, "", {}});
    queues.push_back(nullptr);
    // A direct way that becomes a buffered one has been measured already.
    measurements.back().options.on_notice = nullptr;
    try {
      queues.back() = MakeReadQueue(options);
    } catch (const Error& error) {
      measurements.back().refused = error.what();
    }
  }
  const double bytes = static_cast<double>(probe.span_bytes()) * num_spans;
  const Clock::time_point begin = Clock::now();
  bool measured = false;
  const auto has_time = [&] { return !measured || SecondsSince(begin) < seconds; };
  for (bool any = true; any && has_time();) {
    any = false;
    for (size_t i = 0; i < queues.size() && has_time(); ++i) {
      if (queues[i] == nullptr) continue;
      try {
        measurements[i].rates.push_back(bytes / probe.Read(*queues[i], num_spans, at_once));
        any = true;
        measured = true;
      } catch (const Error& error) {
        measurements[i].refused = error.what();
        measurements[i].rates.clear();
        queues[i] = nullptr;
      }
    }
  }
  return measurements;
}

const ReadMeasurement* PickBest(const std::vector<ReadMeasurement>& measurements) {
  double best = 0;
  for (const ReadMeasurement& m : measurements) best = std::max(best, m.best());
  const auto picked = std::find_if(
      measurements.begin(), measurements.end(),
      [&](const ReadMeasurement& m) { return m.best() > 0 && m.best() >= kCloseEnough * best; });
  return picked == measurements.end() ? nullptr : &*picked;
}

}  // namespace deltafin
