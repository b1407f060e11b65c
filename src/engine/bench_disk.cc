// deltafin bench disk: every way of reading, in turns, so that what else the machine does meanwhile
// hits all of them.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <random>
#include <utility>

#include "base/format.h"
#include "deltafin/bench.h"
#include "deltafin/error.h"
#include "engine/bench_machine.h"
#include "engine/bench_median.h"
#include "io/disk_probe.h"
#include "io/read_choice.h"
#include "store/checkpoint.h"
#include "store/joined_folders.h"

namespace deltafin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kDemand = "disk demand";
constexpr int kDemandSpans = 16;  // of a layer, one token
constexpr int kSteadySpans = 48;
constexpr int kSteadyAtOnce = 32;
constexpr int kPlainSpans = 32;
constexpr uint64_t kPlainPiece = 4 << 20;
// Of the time, for trying everything; the rest is for comparing the best two.
constexpr double kTrialShare = 0.5;
constexpr int kMinFinalRounds = 5;
// Bytes on the disk must be many times what a round reads, or spans repeat.
constexpr uint64_t kMinSpanBytes = 1 << 16;

// One way of reading and the rounds that it took.
struct Way {
  std::string op;
  std::string format;
  int num_spans = 0;
  int depth = 0;
  std::function<double(DiskProbe&)> read;  // seconds of a round
  std::vector<double> seconds;
  std::string failed;

  double Median() const { return MedianOf(seconds); }
};

std::string FormatOf(const ReadQueueOptions& options) {
  return format("{} {} {}M", EngineName(options.engine), ModeName(options.mode),
                options.split_bytes >> 20);
}

std::vector<ReadQueueOptions> AllWays() {
  std::vector<ReadQueueOptions> ways;
  for (const ReadEngine engine : {ReadEngine::kThreads, ReadEngine::kIoUring}) {
    for (const ReadMode mode : {ReadMode::kDirect, ReadMode::kBuffered}) {
      for (const uint64_t split_bytes : {uint64_t{1} << 20, uint64_t{4} << 20}) {
        for (const int depth : {8, 32}) ways.push_back({engine, mode, depth, split_bytes, nullptr});
      }
    }
  }
  return ways;
}

class DiskBench {
 public:
  explicit DiskBench(const DiskBenchOptions& options)
      : options_(options),
        file_system_(RealFileSystem(), options.model_dir, options.also_dirs),
        checkpoint_(Checkpoint::Open(file_system_, options.model_dir)) {
    std::vector<const ReadableFile*> files;
    for (uint32_t shard = 0; shard < checkpoint_->num_shards(); ++shard) {
      files.push_back(&checkpoint_->file(shard));
    }
    const uint64_t span_bytes = std::max(checkpoint_->expert_bytes(), kMinSpanBytes);
    probe_ = std::make_unique<DiskProbe>(std::move(files), span_bytes, std::random_device{}());
    if (!probe_->has_data()) {
      throw Error(ErrorCode::kNotFound,
                  format("{}: no span of {} bytes is on the disk; there is nothing to measure",
                         options.model_dir, span_bytes));
    }
  }

  BenchReport Run() {
    AddPlainWays();
    for (const ReadQueueOptions& way : AllWays()) AddQueueWays(way);
    Measure();
    return Report();
  }

 private:
  void AddPlainWays() {
    for (const ReadMode mode : {ReadMode::kDirect, ReadMode::kBuffered}) {
      for (const int threads : {1, 4, 8, 16}) {
        Add({"disk plain",
             format("pread {}", ModeName(mode)),
             kPlainSpans,
             threads,
             [=](DiskProbe& probe) {
               return probe.ReadPlainly(mode, threads, kPlainPiece, kPlainSpans);
             },
             {},
             ""});
      }
    }
  }

  void AddQueueWays(const ReadQueueOptions& options) {
    std::shared_ptr<ReadQueue> queue;
    try {
      queue = MakeReadQueue(options);
    } catch (const Error& error) {
      notes_.push_back(format("{}, {} deep: {}", FormatOf(options), options.depth, error.what()));
      return;
    }
    for (const bool demand : {false, true}) {
      const int spans = demand ? kDemandSpans : kSteadySpans;
      const int at_once = demand ? kDemandSpans : kSteadyAtOnce;
      Add({demand ? kDemand : "disk steady",
           FormatOf(options),
           spans,
           options.depth,
           [=](DiskProbe& probe) { return probe.Read(*queue, spans, at_once); },
           {},
           ""});
    }
  }

  void Add(Way way) { ways_.push_back(std::move(way)); }

  bool IsOver(double share) const {
    return std::chrono::duration<double>(Clock::now() - begin_).count() >= share * options_.seconds;
  }

  void MeasureOnce(Way& way) {
    if (!way.failed.empty()) return;
    try {
      way.seconds.push_back(way.read(*probe_));
    } catch (const Error& error) {
      way.failed = error.what();
      notes_.push_back(format("{} {}: {}", way.op, way.format, error.what()));
    }
  }

  // Everything in turns, then the best of the two kinds against each other: what looked best of
  // many tries was lucky too, so it is measured anew.
  void Measure() {
    for (int round = 1; round == 1 || !IsOver(kTrialShare); ++round) {
      if (options_.on_progress) options_.on_progress(format("round {} of all ways", round));
      for (Way& way : ways_) {
        if (round == 1 || !IsOver(kTrialShare)) MeasureOnce(way);
      }
    }
    Way* best = Best([](const Way& way) { return way.op != kDemand; });
    Way* demand = Best([](const Way& way) { return way.op == kDemand; });
    if (best == nullptr || demand == nullptr) return;
    finalists_ = {*best, *demand};
    for (Way& way : finalists_) way.seconds.clear();
    if (options_.on_progress) options_.on_progress("the best two");
    for (int round = 0; round < kMinFinalRounds || !IsOver(1); ++round) {
      for (Way& way : finalists_) MeasureOnce(way);
    }
  }

  template <class Chooses>
  Way* Best(Chooses&& chooses) {
    Way* best = nullptr;
    for (Way& way : ways_) {
      if (!way.failed.empty() || !chooses(way)) continue;
      if (best == nullptr || Rate(way) > Rate(*best)) best = &way;
    }
    return best;
  }

  double Rate(const Way& way) const {
    return static_cast<double>(probe_->span_bytes()) * way.num_spans / way.Median() / 1e9;
  }

  BenchReport Report() const {
    if (finalists_.empty() || !finalists_[0].failed.empty() || !finalists_[1].failed.empty()) {
      throw Error(ErrorCode::kIo, format("the disk cannot be measured: {}",
                                         notes_.empty() ? "no way works" : notes_.back()));
    }
    const double limit = Rate(finalists_[0]);
    BenchReport report;
    report.machine = DescribeMachine();
    report.notes = notes_;
    for (const Way& way : ways_) {
      if (way.failed.empty()) report.results.push_back(ResultOf(way, "", limit));
    }
    for (const Way& way : finalists_) report.results.push_back(ResultOf(way, ", final", limit));
    const double got = Rate(finalists_[1]) / limit;
    report.targets.push_back(
        {format("{} spans demanded at once, part of the disk's best rate", kDemandSpans),
         kDemandTarget, got, got >= kDemandTarget});
    return report;
  }

  BenchResult ResultOf(const Way& way, const char* note, double limit) const {
    BenchResult result;
    result.op = way.op + note;
    result.format = way.format;
    result.shape = format("{} x {}", way.num_spans, probe_->span_bytes());
    result.threads = way.depth;
    result.seconds = way.Median();
    result.gb_per_s = Rate(way);
    result.limit = limit;
    result.ratio = Rate(way) / limit;
    return result;
  }

  const DiskBenchOptions options_;
  JoinedFolders file_system_;
  const std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<DiskProbe> probe_;
  const Clock::time_point begin_ = Clock::now();
  std::vector<Way> ways_;
  std::vector<Way> finalists_;  // the disk's best, then the best for demand
  std::vector<std::string> notes_;
};

}  // namespace

BenchReport BenchDisk(const DiskBenchOptions& options) { return DiskBench(options).Run(); }

}  // namespace deltafin
