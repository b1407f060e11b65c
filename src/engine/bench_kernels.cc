#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/format.h"
#include "base/thread_pool.h"
#include "deltafin/bench.h"
#include "deltafin/engine.h"
#include "deltafin/session.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/machine_limits.h"
#include "engine/bench_machine.h"
#include "engine/bench_median.h"
#include "engine/operator_cases.h"

namespace deltafin {
namespace {

constexpr int kRounds = 5;
constexpr double kRoundSeconds = 0.04;  // at least so long is each side of a round
constexpr int64_t kHidden = 7168;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

enum class Bound { kRead, kUpdate, kArithmetic };

const char* BoundName(Bound bound) {
  switch (bound) {
    case Bound::kRead:
      return "read bandwidth";
    case Bound::kUpdate:
      return "update bandwidth";
    case Bound::kArithmetic:
      return "FMA peak";
  }
  return "";
}

const char* FormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kMxfp4:
      return "MXFP4";
  }
  return "";
}

// Seconds of one Run, over as many as fill a round.
double TimeRuns(OperatorCase& subject) {
  int runs = 0;
  const double begin = Seconds();
  double now = begin;
  do {
    subject.Run();
    ++runs;
    now = Seconds();
  } while (now - begin < kRoundSeconds);
  return (now - begin) / runs;
}

// A thread of another program, as far as the scheduler can tell: it never gives its core away.
class Spinner {
 public:
  Spinner()
      : thread_([this] {
          while (!stop_.load(std::memory_order_relaxed)) {
          }
        }) {}
  ~Spinner() {
    stop_ = true;
    thread_.join();
  }
  Spinner(const Spinner&) = delete;
  Spinner& operator=(const Spinner&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class KernelBench {
 public:
  explicit KernelBench(const KernelBenchOptions& options)
      : options_(options), isa_(ChooseCpuIsa(options.cpu_isa)) {}

  BenchReport Run() {
    std::vector<int> threads;
    const int all = UsableProcessors();
    for (int t = 1; t < all && !options_.targets_only; t *= 2) threads.push_back(t);
    if (options_.targets_only && all > 1) threads.push_back(1);
    threads.push_back(all);
    if (options_.threads != 0) threads = {options_.threads};
    for (int t : threads) RunWithThreads(t, t == all);
    device_ = nullptr;
    report_.machine = DescribeMachine();
    report_.notes.push_back(format("kernels: {}", CpuIsaName(isa_)));
    if (!options_.model_dir.empty()) CompareForwardPasses();
    return std::move(report_);
  }

 private:
  void RunWithThreads(int threads, bool all) {
    device_ = nullptr;  // before its pool
    pool_ = std::make_unique<ThreadPool>(threads);
    device_ = MakeCpuDevice(*pool_, isa_);
    for (WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kInt8, WeightFormat::kBf16}) {
      MatMuls(format, all);
    }
    Experts(all);
    for (int64_t n : Positions({1, 8, 64})) {
      const BenchResult result =
          Measure(*MakeKdaCase(*device_, n), "KDA recurrence", "f32", "96 x 128 x 128", n,
                  n == 1 ? Bound::kUpdate : Bound::kArithmetic);
      if (n == 1 && all) Target("KDA step, all threads, of update bandwidth", 0.70, *result.ratio);
    }
    for (int64_t context : {1024, 32768, 131072}) {
      if (options_.targets_only && context != 32768) continue;
      for (CacheFormat cache : {CacheFormat::kF32, CacheFormat::kBf16}) {
        const BenchResult result = Measure(*MakeMlaCase(*device_, cache, context, 1), "MLA attend",
                                           cache == CacheFormat::kF32 ? "f32" : "bf16",
                                           format("{} tokens", context), 1, Bound::kArithmetic);
        if (context == 32768 && cache == CacheFormat::kBf16 && all) {
          Target(
              "MLA decode at 32k, all threads, of FMA peak (96 heads share each latent: bound by "
              "arithmetic, not by bandwidth)",
              0.70, *result.ratio);
        }
      }
    }
  }

  std::vector<int64_t> Positions(std::vector<int64_t> wanted) const {
    if (options_.targets_only) std::erase_if(wanted, [](int64_t n) { return n != 1 && n != 128; });
    return wanted;
  }

  void MatMuls(WeightFormat weights, bool all) {
    struct Shape {
      const char* name;
      int64_t rows, cols;
    };
    static constexpr Shape kExpert[] = {{"expert gate/up", 3072, 3584},
                                        {"expert down", 3584, 3072}};
    static constexpr Shape kSpine[] = {{"q/k/v/g", 12288, kHidden},
                                       {"o", kHidden, 12288},
                                       {"shared gate/up", 6144, kHidden},
                                       {"shared down", kHidden, 6144},
                                       {"latent", 3584, kHidden},
                                       {"router", 896, kHidden},
                                       {"quarter of the head", 40960, kHidden}};
    const std::span<const Shape> shapes =
        weights == WeightFormat::kMxfp4 ? std::span<const Shape>(kExpert) : kSpine;
    for (const Shape& shape : shapes) {
      const bool first = &shape == shapes.data();
      if (options_.targets_only && !first) continue;
      for (int64_t n : Positions({1, 2, 4, 8, 32, 128, 512})) {
        const BenchResult result =
            Measure(*MakeMatMulCase(*device_, arena_, weights, shape.rows, shape.cols, n),
                    format("MatMul {}", shape.name), FormatName(weights),
                    format("{} x {}", shape.rows, shape.cols), n,
                    n <= 8 ? Bound::kRead : Bound::kArithmetic);
        if (!first) continue;
        if (n == 128 && all) {
          Target(format("{} at 128 positions, all threads, of FMA peak", FormatName(weights)), 0.65,
                 *result.ratio);
        }
        if (n == 1 && all && weights != WeightFormat::kMxfp4) OnePosition(weights, result);
      }
    }
  }

  // The experts as a layer uses them: 16 at once.
  void Experts(bool all) {
    for (int64_t n : Positions({1, 2, 4, 8, 32, 128})) {
      const auto subject = MakeExpertCase(*device_, arena_, n);
      const BenchResult result = Measure(*subject, "ExpertMlp", "MXFP4", "16 x 3 x 3072 x 3584", n,
                                         n <= 8 ? Bound::kRead : Bound::kArithmetic);
      if (n != 1) continue;
      if (all) {
        OnePosition(WeightFormat::kMxfp4, result);
        Busy(*subject, result.seconds);
      }
      if (pool_->num_threads() == 1) {
        Target("MXFP4 at one position, one thread, of read bandwidth", 0.60, *result.ratio);
      }
    }
  }

  // All threads at one position: of what the memory gives, and of what binds where that is less,
  // the instructions that widen the weights.
  void OnePosition(WeightFormat weights, const BenchResult& result) {
    const char* name = FormatName(weights);
    Target(format("{} at one position, all threads, of read bandwidth", name), 0.85, *result.ratio);
    const double from_caches = pool_->num_threads() * FromCache(weights);
    const double bound = std::min(*result.limit, from_caches);
    Target(format("{} at one position, all threads, of read bandwidth or the rate from the caches",
                  name),
           0.85, *result.gb_per_s / bound);
    report_.notes.push_back(format("{} at one position: from the caches of all threads {:.1f} GB/s",
                                   name, from_caches));
  }

  // GB per second of one thread that finds its weights in the cache of its core.
  double FromCache(WeightFormat weights) const {
    constexpr int64_t kCols = 1024;
    constexpr int64_t kWeightBytes = int64_t{1} << 18;
    ThreadPool pool(1);
    const std::unique_ptr<Device> device = MakeCpuDevice(pool, isa_);
    WeightArena arena(kWeightBytes);
    const int64_t rows = kWeightBytes / Matrix{weights, 1, kCols, nullptr, nullptr}.row_bytes();
    const auto subject = MakeMatMulCase(*device, arena, weights, rows, kCols, 1);
    subject->Run();
    std::vector<double> seconds;
    for (int round = 0; round < kRounds; ++round) seconds.push_back(TimeRuns(*subject));
    return subject->bytes() / MedianOf(seconds) * 1e-9;
  }

  void Busy(OperatorCase& subject, double idle_seconds) {
    const Spinner spinner;
    std::vector<double> seconds;
    for (int round = 0; round < kRounds; ++round) seconds.push_back(TimeRuns(subject));
    Target("MXFP4 while another thread spins, of the speed without it", 0.40,
           idle_seconds / MedianOf(seconds));
  }

  BenchResult Measure(OperatorCase& subject, const std::string& op, const std::string& weights,
                      const std::string& shape, int64_t positions, Bound bound) {
    std::vector<double> limits, seconds, ratios;
    subject.Run();
    for (int round = 0; round < kRounds; ++round) {
      limits.push_back(bound == Bound::kRead     ? ReadBytesPerSecond(*pool_, 1)
                       : bound == Bound::kUpdate ? UpdateBytesPerSecond(*pool_, 1)
                                                 : PeakFlops(*pool_, isa_, 1));
      seconds.push_back(TimeRuns(subject));
      const double work = bound == Bound::kArithmetic ? subject.flops() : subject.bytes();
      ratios.push_back(work / seconds.back() / limits.back());
    }
    BenchResult result;
    result.op = op;
    result.format = weights;
    result.shape = shape;
    result.positions = positions;
    result.threads = pool_->num_threads();
    result.seconds = MedianOf(seconds);
    result.gb_per_s = subject.bytes() / result.seconds * 1e-9;
    result.gflop_per_s = subject.flops() / result.seconds * 1e-9;
    result.bound = BoundName(bound);
    result.limit = MedianOf(limits) * 1e-9;
    result.ratio = MedianOf(ratios);
    report_.results.push_back(result);
    if (options_.on_result) options_.on_result(result);
    return result;
  }

  // Whole passes of the model, against the plain device.
  void CompareForwardPasses() {
    std::vector<double> seconds;
    for (const std::string& isa : {std::string("plain"), options_.cpu_isa}) {
      EngineOptions options;
      options.model_dir = options_.model_dir;
      options.cpu_isa = isa;
      const auto engine = Engine::Open(options);
      const std::vector<TokenId> prompt(64, 0);
      GenerateOptions generate;
      generate.max_new_tokens = 32;
      generate.stop_at_stop_tokens = false;
      engine->NewSession()->Generate(prompt, generate);  // reads the weights
      std::vector<double> runs;
      for (int round = 0; round < kRounds; ++round) {
        const double begin = Seconds();
        engine->NewSession()->Generate(prompt, generate);
        runs.push_back(Seconds() - begin);
      }
      seconds.push_back(MedianOf(runs));
    }
    Target("whole forward pass, 64 prompt and 32 new tokens, times as fast as the plain device", 5,
           seconds[0] / seconds[1]);
  }

  void Target(const std::string& name, double target, double got) {
    report_.targets.push_back({name, target, got, got >= target});
  }

  const KernelBenchOptions& options_;
  CpuIsa isa_;
  WeightArena arena_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Device> device_;
  BenchReport report_;
};

}  // namespace

BenchReport BenchKernels(const KernelBenchOptions& options) { return KernelBench(options).Run(); }

}  // namespace deltafin
