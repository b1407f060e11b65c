// deltafin bench context: what a token costs after a long text.
#include <string>

#include "base/format.h"
#include "engine/bench_machine.h"
#include "engine/bench_sessions.h"

namespace deltafin {
namespace {

constexpr int64_t kReadTokens = 64;  // that are really read; then they are repeated
// Twice as long a context must not make a KDA layer slower, and an MLA layer not more than twice.
constexpr double kConstantTarget = 0.8;
constexpr double kLinearTarget = 0.8;

class ContextBench {
 public:
  explicit ContextBench(const ContextBenchOptions& options)
      : options_(options), contexts_(options.contexts) {
    if (contexts_.empty()) contexts_ = {1024, 32'768, 131'072};
    for (size_t i = 0; i < contexts_.size(); ++i) {
      if (contexts_[i] >= kReadTokens && (i == 0 || contexts_[i] > contexts_[i - 1])) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  format("contexts: expected ascending numbers from {}, got {}", kReadTokens,
                         contexts_[i]));
    }
    if (options.tokens < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("tokens: expected at least 1, got {}", options.tokens));
    }
    EngineOptions engine = options.engine;
    engine.context_tokens = contexts_.back() + 2 + options.tokens;
    engine_ = Engine::Open(engine);
  }

  BenchReport Run() {
    BenchReport report;
    report.machine = DescribeMachine();
    const auto session = NewSessionImpl(*engine_);
    RandomTokens random(engine_->tokenizer().vocab_size(), 3);
    session->Append(random.Take(kReadTokens), 0, nullptr, nullptr);
    for (int64_t context : contexts_) Measure(*session, context, random, report);
    AddTargets(report);
    report.notes.push_back(
        format("the first {} tokens of each context were read, the others are copies of their "
               "entries in the latent cache",
               kReadTokens));
    for (const std::string& line : engine_->Describe()) report.notes.push_back(line);
    return report;
  }

 private:
  struct Times {
    double token = 0;
    double kda = 0;  // of the layer with the median time
    double mla = 0;
  };

  void Measure(SessionImpl& session, int64_t context, RandomTokens& random, BenchReport& report) {
    const auto snapshot = session.Save();
    session.RepeatTo(context);
    Step(session, random.Next());  // what is read or touched at the first use only
    std::vector<double> tokens;
    std::vector<double> kda;
    std::vector<double> mla;
    const uint64_t read_before = engine_->counters().context_bytes;
    for (int64_t i = 0; i < options_.tokens; ++i) {
      const std::vector<double> layers = Step(session, random.Next());
      double all = 0;
      for (size_t layer = 0; layer < layers.size(); ++layer) {
        all += layers[layer];
        // The last time is that of the last layer and the head: only where there is no other.
        if (layer + 1 == layers.size() && engine_->info().num_mla_layers > 1) continue;
        (session.is_mla(static_cast<int64_t>(layer)) ? mla : kda).push_back(layers[layer]);
      }
      tokens.push_back(all);
    }
    const Times times{MedianOf(tokens), kda.empty() ? 0 : MedianOf(kda),
                      mla.empty() ? 0 : MedianOf(mla)};
    times_.push_back(times);
    Add(report, "context token", context, times.token);
    if (!kda.empty()) Add(report, "context KDA layer", context, times.kda);
    if (!mla.empty()) Add(report, "context MLA layer", context, times.mla);
    const uint64_t read = engine_->counters().context_bytes - read_before;
    report.notes.push_back(format(
        "{} tokens of context: the state takes {:.1f} MB of memory{}", context,
        static_cast<double>(session.state_memory_bytes()) / 1e6,
        read > 0 ? format(", and {:.1f} MB of latent cache are read for a token",
                          static_cast<double>(read) / 1e6 / static_cast<double>(options_.tokens))
                 : ""));
    session.Restore(*snapshot);
  }

  // Reads one token: the seconds of each layer, from one question whether to cancel to the next.
  static std::vector<double> Step(SessionImpl& session, TokenId token) {
    std::vector<double> begins;
    const Stopwatch watch;
    session.Append({&token, 1}, 0, nullptr, [&] {
      begins.push_back(watch.Seconds());
      return false;
    });
    begins.push_back(watch.Seconds());
    std::vector<double> seconds;
    for (size_t i = 1; i < begins.size(); ++i) seconds.push_back(begins[i] - begins[i - 1]);
    return seconds;
  }

  void Add(BenchReport& report, const char* op, int64_t context, double seconds) const {
    BenchResult result;
    result.op = op;
    result.format = options_.engine.cache_format == CacheFormat::kF32 ? "cache f32" : "cache bf16";
    result.shape = format("{} tokens", context);
    result.positions = 1;
    result.seconds = seconds;
    if (options_.on_result) options_.on_result(result);
    report.results.push_back(result);
  }

  void AddTargets(BenchReport& report) const {
    if (times_.size() < 2) return;
    const Times& first = times_.front();
    const Times& last = times_.back();
    if (first.kda > 0) {
      const double constant = first.kda / last.kda;
      report.targets.push_back(
          {format("KDA layer, {} over {} tokens", contexts_.front(), contexts_.back()),
           kConstantTarget, constant, constant >= kConstantTarget});
    }
    if (times_.size() < 3 || first.mla == 0) return;
    // The growth per token in the second part of the range, and in the first.
    const Times& middle = times_[times_.size() - 2];
    const auto growth = [&](const Times& a, const Times& b, size_t from, size_t to) {
      return (b.mla - a.mla) / static_cast<double>(contexts_[to] - contexts_[from]);
    };
    const double linear = growth(first, middle, 0, times_.size() - 2) /
                          growth(middle, last, times_.size() - 2, times_.size() - 1);
    report.targets.push_back({format("MLA layer, seconds per token of context below {} over those "
                                     "above",
                                     contexts_[times_.size() - 2]),
                              kLinearTarget, linear, linear >= kLinearTarget});
  }

  const ContextBenchOptions options_;
  std::vector<int64_t> contexts_;
  std::unique_ptr<Engine> engine_;
  std::vector<Times> times_;
};

}  // namespace

BenchReport BenchContext(const ContextBenchOptions& options) { return ContextBench(options).Run(); }

}  // namespace deltafin
