#include "deltafin/quality.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <utility>

#include "base/format.h"
#include "deltafin/session.h"
#include "engine/api_logprobs.h"
#include "engine/logits_file.h"
#include "engine/quality_statistics.h"
#include "io/atomic_file.h"

namespace deltafin {
namespace {

constexpr int64_t kDefaultWindow = 8192;
constexpr uint64_t kMaxAnswerBytes = uint64_t{1} << 30;

// Removes the file at the end.
class ScratchFile {
 public:
  explicit ScratchFile(std::string path) : path_(std::move(path)) {}
  ~ScratchFile() {
    try {
      RemoveFile(path_);
    } catch (const Error&) {  // it is only in the way
    }
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

 private:
  const std::string path_;
};

class QualityRun {
 public:
  explicit QualityRun(const QualityOptions& options) : options_(options) {
    tokenizer_ = Tokenizer::Load(options.engine.model_dir);
    tokens_ = tokenizer_->Encode(options.text, Specials::kPlain);
    if (options.max_tokens > 0 && std::ssize(tokens_) > options.max_tokens) {
      tokens_.resize(static_cast<size_t>(options.max_tokens));
    }
    if (tokens_.size() < 2) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("text: expected at least 2 tokens, got {}", tokens_.size()));
    }
    const int64_t wanted = options.engine.context_tokens;
    window_ = std::min<int64_t>(wanted != 0 ? wanted : kDefaultWindow, std::ssize(tokens_));
    if (window_ < 2) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("context: expected windows of at least 2 tokens, of which the first "
                         "predicts the second, got {}",
                         window_));
    }
  }

  QualityReport Run() {
    const QualityReference& against = options_.against;
    if (against.engine) return RunAgainstEngine();
    if (!against.logits_path.empty()) return RunAgainstLogits(against.logits_path);
    if (!against.logprobs_path.empty()) return RunAgainstAnswer();
    return Measure(nullptr);
  }

 private:
  // Adds the distribution after token `position`, which `next` followed, to the comparison.
  using Compare = std::function<void(int64_t position, const LogitsRow& row, TokenId next)>;
  // Asked before the first pass, which may take hours: checks the reference first.
  using MakeCompare = std::function<Compare(int64_t vocab_size)>;
  using Sink = std::function<void(int64_t position, std::span<const float> row)>;

  std::unique_ptr<Engine> Open(EngineOptions options) const {
    options.context_tokens = window_;
    return Engine::Open(options);
  }

  // The logits after every token of the text.
  void Read(Engine& engine, const std::string& run, const Sink& sink) const {
    const std::span<const TokenId> all = tokens_;
    for (int64_t first = 0; first < std::ssize(all); first += window_) {
      const auto window = all.subspan(first, std::min(window_, std::ssize(all) - first));
      engine.NewSession()->Append(
          window, 0,
          [&](int64_t position, std::span<const float> row) {
            sink(first + position, row);
            if (options_.on_progress) {
              options_.on_progress(run, first + position + 1, std::ssize(all));
            }
          },
          options_.cancelled);
    }
  }

  bool PredictsNext(int64_t position) const {
    return position + 1 < std::ssize(tokens_) && (position + 1) % window_ != 0;
  }

  // Null: they are not kept.
  std::unique_ptr<LogitsWriter> KeptLogits(const Engine& engine) const {
    if (options_.logits_path.empty()) return nullptr;
    return std::make_unique<LogitsWriter>(options_.logits_path, std::ssize(tokens_),
                                          engine.info().vocab_size);
  }

  QualityReport Measure(const MakeCompare& make_compare) const {
    const auto engine = Open(options_.engine);
    const Compare compare = make_compare ? make_compare(engine->info().vocab_size) : Compare();
    const auto kept = KeptLogits(*engine);
    PredictionScore score;
    const auto start = std::chrono::steady_clock::now();
    Read(*engine, "measured", [&](int64_t position, std::span<const float> logits) {
      if (kept) kept->Add(logits);
      if (!PredictsNext(position)) return;
      const TokenId next = tokens_[position + 1];
      const LogitsRow row(logits);
      score.Add(row, next, tokenizer_->Bytes(next).size());
      if (compare) compare(position, row, next);
    });
    if (kept) kept->Commit();
    QualityReport report;
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    report.description = engine->Describe();
    report.tokens = std::ssize(tokens_);
    report.windows = (report.tokens + window_ - 1) / window_;
    score.Fill(&report);
    return report;
  }

  QualityReport WithComparison(const MakeCompare& make_compare, const PredictionDistance& distance,
                               std::vector<std::string> description) const {
    QualityReport report = Measure(make_compare);
    report.comparison.emplace();
    report.comparison->reference = options_.against.name;
    report.comparison->description = std::move(description);
    distance.Fill(&*report.comparison);
    return report;
  }

  // One after the other, so that each has the whole memory; the first one's logits wait in a file.
  QualityReport RunAgainstEngine() const {
    (void)KeptLogits(*Open(options_.engine));  // what cannot be is said before the first pass
    const ScratchFile scratch(options_.scratch_path);
    std::vector<std::string> description;
    {
      const auto engine = Open(*options_.against.engine);
      description = engine->Describe();
      LogitsWriter writer(options_.scratch_path, std::ssize(tokens_), engine->info().vocab_size);
      Read(*engine, "reference",
           [&](int64_t, std::span<const float> logits) { writer.Add(logits); });
      writer.Commit();
    }
    return RunAgainstLogits(options_.scratch_path, std::move(description));
  }

  QualityReport RunAgainstLogits(const std::string& path,
                                 std::vector<std::string> description = {}) const {
    std::optional<LogitsReader> reader;
    PredictionDistance distance;
    const MakeCompare make_compare = [&](int64_t vocab_size) -> Compare {
      reader.emplace(path, std::ssize(tokens_), vocab_size);
      return [&](int64_t position, const LogitsRow& row, TokenId next) {
        distance.Add(position, row, LogitsRow(reader->Row(position)), next);
      };
    };
    return WithComparison(make_compare, distance, std::move(description));
  }

  QualityReport RunAgainstAnswer() const {
    const std::string& path = options_.against.logprobs_path;
    const auto positions = ParseApiLogprobs(ReadWholeFile(RealFileSystem(), path, kMaxAnswerBytes),
                                            path, *tokenizer_, tokens_);
    const int64_t first = std::ssize(tokens_) - std::ssize(positions);
    bool is_comparable = false;
    for (int64_t i = 0; i < std::ssize(positions); ++i) {
      is_comparable =
          is_comparable || (positions[i] && first + i > 0 && PredictsNext(first + i - 1));
    }
    if (!is_comparable) {
      throw Error(ErrorCode::kInvalidArgument,
                  path + ": it has no log probability of any token that is predicted");
    }
    PredictionDistance distance;
    Compare compare = [&](int64_t position, const LogitsRow& row, TokenId next) {
      if (position + 1 < first) return;
      const auto& reference = positions[position + 1 - first];
      if (reference) distance.AddPartial(position, row, *reference, next);
    };
    return WithComparison([&](int64_t) { return compare; }, distance, {});
  }

  const QualityOptions& options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<TokenId> tokens_;
  int64_t window_ = 0;
};

}  // namespace

QualityReport MeasureQuality(const QualityOptions& options) { return QualityRun(options).Run(); }

}  // namespace deltafin
