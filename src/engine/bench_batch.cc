// deltafin bench batch: what sequences gain by sharing passes.
#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/bench.h"
#include "engine/bench_machine.h"
#include "engine/bench_median.h"
#include "engine/bench_sessions.h"
#include "engine/engine_impl.h"

namespace deltafin {
namespace {

constexpr int kCounts[] = {1, 2, 4, 8};
constexpr int kMostSequences = 8;
constexpr int kTargetSequences = 4;
constexpr double kGainAtTarget = 2.5;

class BatchBench {
 public:
  explicit BatchBench(const BatchBenchOptions& options) : options_(options) {
    if (options.tokens < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("tokens: expected at least 1, got {}", options.tokens));
    }
    EngineOptions engine = options.engine;
    engine.parallel_sessions = kMostSequences;
    engine.context_tokens = options.tokens;
    engine.max_draft_tokens = 0;
    engine_ = Engine::Open(engine);
    impl_ = dynamic_cast<EngineImpl*>(engine_.get());
    DF_CHECK(impl_ != nullptr);
    for (int i = 0; i < kMostSequences; ++i) {
      states_.push_back(std::make_unique<SequenceState>(
          impl_->config(), impl_->device(), impl_->cache_format(), impl_->cache_spill()));
    }
  }

  BenchReport Run() {
    const Stopwatch watch;
    Decode(kMostSequences, 0);  // what is read at the first use only
    const double share = options_.seconds / (kUsualRounds * std::size(kCounts));
    double round_seconds = 0;
    for (int round = 1; round == 1 || watch.Seconds() + round_seconds < options_.seconds; ++round) {
      const Stopwatch this_round;
      // In turns, so that what else the machine does hits all.
      for (int count : kCounts) {
        const double seconds = Decode(count, share);
        seconds_[count].push_back(seconds);
        if (!options_.on_progress) continue;
        options_.on_progress(
            format("round {}, {} sequences: {:.4f} s a pass", round, count, seconds));
      }
      round_seconds = this_round.Seconds();
    }
    return Report();
  }

 private:
  // Seconds of a pass in which `count` sequences get a token each: the mean of options_.tokens of
  // them, or of as many as begin within `seconds`. The tokens are random, so that every sequence
  // picks experts of its own.
  double Decode(int count, double seconds) {
    std::uniform_int_distribution<TokenId> token(
        0, static_cast<TokenId>(impl_->config().vocab_size - 1));
    std::vector<std::vector<TokenId>> tokens(static_cast<size_t>(count));
    for (auto& state : states_) state->Clear();
    const Stopwatch watch;
    int64_t passes = 0;
    while (passes == 0 || (passes < options_.tokens && watch.Seconds() < seconds)) {
      std::vector<deltafin::Run> runs;
      for (int i = 0; i < count; ++i) {
        tokens[i] = {token(random_)};
        runs.push_back({states_[i].get(), tokens[i], LogitsWanted::kLast});
      }
      impl_->model().Forward(runs, [](size_t, int64_t, std::span<const float>) {}, {});
      ++passes;
    }
    return watch.Seconds() / static_cast<double>(passes);
  }

  BenchReport Report() const {
    BenchReport report;
    report.machine = DescribeMachine();
    const std::vector<double>& alone = seconds_.at(1);
    for (int count : kCounts) {
      std::vector<double> gains;  // of tokens per second, round by round
      for (size_t i = 0; i < alone.size(); ++i) {
        gains.push_back(count * alone[i] / seconds_.at(count)[i]);
      }
      BenchResult result;
      result.op = "batch";
      result.shape = format("{} sequences, {} rounds", count, alone.size());
      result.positions = count;
      result.seconds = MedianOf(seconds_.at(count));
      result.bound = "tokens/s of one sequence";
      result.limit = 1 / MedianOf(alone);
      result.ratio = MedianOf(gains);
      if (options_.on_result) options_.on_result(result);
      report.results.push_back(result);
      if (count != kTargetSequences) continue;
      report.targets.push_back({format("tokens/s of {} sequences in a pass, of one", count),
                                kGainAtTarget, *result.ratio, *result.ratio >= kGainAtTarget});
    }
    for (const std::string& line : engine_->Describe()) report.notes.push_back(line);
    return report;
  }

  const BatchBenchOptions options_;
  std::unique_ptr<Engine> engine_;
  EngineImpl* impl_ = nullptr;
  std::vector<std::unique_ptr<SequenceState>> states_;
  std::map<int, std::vector<double>> seconds_;  // of a pass, by the number of sequences
  std::mt19937 random_{1};
};

}  // namespace

BenchReport BenchBatch(const BatchBenchOptions& options) { return BatchBench(options).Run(); }

}  // namespace deltafin
