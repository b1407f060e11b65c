// deltafin bench prefill: how fast a prompt is read, by the positions of a pass.
#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "base/format.h"
#include "engine/bench_machine.h"
#include "engine/bench_sessions.h"

namespace deltafin {
namespace {

constexpr int64_t kMaxPasses = 4;       // of one size
constexpr int64_t kLeastContext = 512;  // no plan has room for longer passes
constexpr double kBytesTarget = 0.95;

// Counts the experts that each pass must read: those that one of its positions picked.
class NeededExperts {
 public:
  explicit NeededExperts(int64_t chunk) : chunk_(chunk) {}

  void Add(const RouterPicks& picks) {
    const int64_t pass = picks.position / chunk_;
    for (int32_t id : picks.ids) needed_.insert({pass, picks.layer, id});
  }
  uint64_t count() const { return needed_.size(); }

 private:
  struct Key {
    int64_t pass;
    int64_t layer;
    int32_t id;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): generated
  };
  const int64_t chunk_;
  std::set<Key> needed_;
};

class PrefillBench {
 public:
  explicit PrefillBench(const PrefillBenchOptions& options) : options_(options) {
    if (options.tokens < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("tokens: expected at least 1, got {}", options.tokens));
    }
    EngineOptions engine = options.engine;
    engine.context_tokens = std::max(kLeastContext, options.tokens);
    for (int64_t chunk : options.chunks) {
      engine.context_tokens = std::max(engine.context_tokens, chunk);
    }
    engine_ = std::make_unique<EngineImpl>(engine);
    largest_ = engine_->max_positions();
    tokens_ = options.tokens != 0 ? options.tokens : largest_;
    for (int64_t chunk : options.chunks.empty() ? UsualChunks() : options.chunks) {
      if (chunk < 1 || chunk > largest_) {
        throw Error(ErrorCode::kInvalidArgument,
                    format("chunks: expected 1 to {} positions, which the memory plan has room "
                           "for, got {}",
                           largest_, chunk));
      }
      if (chunk <= tokens_) chunks_.push_back(chunk);
    }
  }

  BenchReport Run() {
    report_.machine = DescribeMachine();
    // What stays in RAM is read now.
    RandomTokens random(engine_->tokenizer().vocab_size(), 5);
    NewSessionImpl(*engine_)->Append(random.Take(1), 0, nullptr, nullptr);
    for (int64_t chunk : chunks_) Measure(chunk);
    report_.notes.push_back(
        format("{} of {} bytes of the spine are in memory; an expert is {} bytes",
               ResidentSpineBytes(), engine_->info().spine_bytes, engine_->info().expert_bytes));
    for (const std::string& line : engine_->Describe()) report_.notes.push_back(line);
    return report_;
  }

 private:
  // What passes do not read again.
  uint64_t ResidentSpineBytes() const {
    return engine_->info().spine_bytes - engine_->info().streamed_spine_bytes;
  }

  std::vector<int64_t> UsualChunks() const {
    std::vector<int64_t> chunks = {1};
    if (largest_ >= 8) chunks.push_back(8);
    for (int64_t chunk = 64; chunk < largest_; chunk *= 2) chunks.push_back(chunk);
    if (largest_ > chunks.back()) chunks.push_back(largest_);
    return chunks;
  }

  void Measure(int64_t chunk) {
    const int64_t passes = std::clamp<int64_t>(tokens_ / chunk, 1, kMaxPasses);
    const int64_t count = passes * chunk;
    const auto session = NewSessionImpl(*engine_);
    NeededExperts needed(chunk);
    session->SetOnRouterPicks([&](const RouterPicks& picks) { needed.Add(picks); });
    RandomTokens random(engine_->tokenizer().vocab_size(), static_cast<uint64_t>(chunk) + 11);
    const std::vector<TokenId> prompt = random.Take(count);
    const EngineCounters before = engine_->counters();
    const Stopwatch watch;
    // Each pass ends with the head, as that of a prompt of one pass does.
    for (int64_t first = 0; first < count; first += chunk) {
      session->Append(
          std::span(prompt).subspan(static_cast<size_t>(first), static_cast<size_t>(chunk)), chunk,
          nullptr, nullptr);
    }
    const double seconds = watch.Seconds();
    const auto bytes = static_cast<double>((engine_->counters() - before).bytes_read());
    const uint64_t streamed = engine_->info().spine_bytes - ResidentSpineBytes();
    const auto bound = static_cast<double>(static_cast<uint64_t>(passes) * streamed +
                                           needed.count() * engine_->info().expert_bytes);
    BenchResult result;
    result.op = "prefill";
    result.format = streamed == 0 ? "spine in RAM" : "spine streamed";
    result.shape = format("{} tokens", count);
    result.positions = chunk;
    result.seconds = seconds / static_cast<double>(passes);
    result.tokens_per_s = static_cast<double>(count) / seconds;
    result.bytes_per_token = bytes / static_cast<double>(count);
    result.gb_per_s = bytes / seconds / 1e9;
    if (bytes > 0) {
      result.bound = "bytes that a pass needs, read once";
      result.ratio = bound / bytes;
    }
    if (options_.on_result) options_.on_result(result);
    report_.results.push_back(result);
    if (chunk == chunks_.back() && bytes > 0) {
      const double got = bound / bytes;
      report_.targets.push_back({format("bytes needed over bytes read, passes of {}", chunk),
                                 kBytesTarget, got, got >= kBytesTarget});
    }
  }

  const PrefillBenchOptions options_;
  std::unique_ptr<EngineImpl> engine_;
  int64_t largest_ = 1;  // pass
  int64_t tokens_ = 1;
  std::vector<int64_t> chunks_;
  BenchReport report_;
};

}  // namespace

BenchReport BenchPrefill(const PrefillBenchOptions& options) { return PrefillBench(options).Run(); }

}  // namespace deltafin
