// deltafin bench spec: what guesses gain where a text repeats itself, and lose where it does not.
#include <array>
#include <string>

#include "base/format.h"
#include "engine/bench_machine.h"
#include "engine/bench_sessions.h"

namespace deltafin {
namespace {

constexpr int64_t kPromptTokens = 64;
constexpr int64_t kPeriod = 32;  // of the text that repeats itself: the prompt holds two of them
constexpr double kGainTarget = 1.5;
constexpr double kLossTarget = 0.98;

struct Mode {
  const char* name;
  int64_t draft_tokens;
};
constexpr std::array<Mode, 2> kModes = {{{"off", 0}, {"auto", kAutoDraft}}};

// One text, decoded in both modes again and again.
struct Case {
  std::string name;
  std::vector<TokenId> text;  // prompt and what follows
  std::array<std::vector<double>, kModes.size()> seconds;
  std::vector<double> gains;  // of each round
  int64_t drafted = 0;
  int64_t accepted = 0;
  int64_t draft_passes = 0;
};

class SpecBench {
 public:
  explicit SpecBench(const SpecBenchOptions& options) : options_(options) {
    if (options.tokens < 16) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("tokens: expected at least 16, got {}", options.tokens));
    }
    EngineOptions engine = options.engine;
    engine.max_draft_tokens = kMaxDraftTokens;
    engine.context_tokens = kPromptTokens + options.tokens + 1;
    engine_ = Engine::Open(engine);
    RandomTokens random(engine_->tokenizer().vocab_size(), 7);
    const int64_t length = kPromptTokens + options.tokens;
    cases_ = {{"repetitive", random.Take(kPeriod), {}, {}, 0, 0, 0},
              {"random", random.Take(length), {}, {}, 0, 0, 0}};
    std::vector<TokenId>& repetitive = cases_[0].text;
    while (std::ssize(repetitive) < length) {
      repetitive.push_back(repetitive[repetitive.size() - kPeriod]);
    }
  }

  BenchReport Run() {
    for (Case& text : cases_) Decode(text, 0);  // what is read at the first use only
    const Stopwatch watch;
    double round_seconds = 0;
    for (int round = 0; round < kMinRounds || watch.Seconds() + round_seconds < options_.seconds;
         ++round) {
      const Stopwatch this_round;
      for (Case& text : cases_) MeasureRound(text, round);
      round_seconds = this_round.Seconds();
    }
    return Report();
  }

 private:
  double Decode(Case& text, size_t mode) {
    const auto session = NewSessionImpl(*engine_);
    session->set_forced_text(text.text);
    GenerateOptions generate;
    generate.max_new_tokens = options_.tokens;
    generate.stop_at_stop_tokens = false;
    generate.draft_tokens = kModes[mode].draft_tokens;
    const GenerateResult result =
        session->Generate(std::span(text.text).first(kPromptTokens), generate);
    text.drafted += result.drafted_tokens;
    text.accepted += result.accepted_tokens;
    text.draft_passes += result.draft_passes;
    return result.decode_seconds / static_cast<double>(options_.tokens - 1);
  }

  // In turns, so that what else the machine does hits both.
  void MeasureRound(Case& text, int round) {
    std::array<double, kModes.size()> seconds = {};
    for (size_t i = 0; i < kModes.size(); ++i) {
      const size_t mode = round % 2 == 0 ? i : kModes.size() - 1 - i;
      seconds[mode] = Decode(text, mode);
      text.seconds[mode].push_back(seconds[mode]);
    }
    text.gains.push_back(seconds[0] / seconds[1]);
  }

  BenchReport Report() const {
    BenchReport report;
    report.machine = DescribeMachine();
    for (const Case& text : cases_) {
      for (size_t mode = 0; mode < kModes.size(); ++mode) {
        BenchResult result;
        result.op = "spec " + text.name;
        result.format = kModes[mode].name;
        result.shape = format("{} tokens, {} rounds", options_.tokens, text.gains.size());
        result.seconds = MedianOf(text.seconds[mode]);
        if (mode > 0) {
          result.bound = "speed without guesses";
          result.ratio = MedianOf(text.gains);
        }
        if (options_.on_result) options_.on_result(result);
        report.results.push_back(result);
      }
      report.notes.push_back(format("{}: {} of {} guesses were right, in {} passes", text.name,
                                    text.accepted, text.drafted, text.draft_passes));
    }
    const double gain = MedianOf(cases_[0].gains);
    const double loss = MedianOf(cases_[1].gains);
    report.targets = {
        {"speed with guesses, text that repeats itself", kGainTarget, gain, gain >= kGainTarget},
        {"speed with guesses, random text", kLossTarget, loss, loss >= kLossTarget}};
    for (const std::string& line : engine_->Describe()) report.notes.push_back(line);
    return report;
  }

  const SpecBenchOptions options_;
  std::unique_ptr<Engine> engine_;
  std::vector<Case> cases_;
};

}  // namespace

BenchReport BenchSpec(const SpecBenchOptions& options) { return SpecBench(options).Run(); }

}  // namespace deltafin
