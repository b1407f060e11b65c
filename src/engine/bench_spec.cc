// deltafin bench spec: what guesses gain where a text repeats itself, and lose where it does not.
#include <algorithm>
#include <array>
#include <string>

#include "base/format.h"
#include "engine/bench_machine.h"
#include "engine/bench_sessions.h"

namespace deltafin {
namespace {

constexpr int64_t kPromptTokens = 64;
constexpr int64_t kPeriod = 32;  // of the text that repeats itself: the prompt holds two of them
// Both modes decode a part each by turns, so that what else the machine does hits both; not too
// short, as the end of a part ends a draft.
constexpr int64_t kMostParts = 4;
constexpr int64_t kLeastPartTokens = 32;
constexpr double kGainTarget = 1.5;
constexpr double kLossTarget = 0.98;

struct Mode {
  const char* name;
  int64_t draft_tokens;
};
constexpr std::array<Mode, 2> kModes = {{{"off", 0}, {"auto", kAutoDraft}}};

// One text, decoded in both modes at the same time, again and again.
struct Case {
  std::string name;
  std::vector<TokenId> text;                               // prompt and what follows
  std::array<std::vector<double>, kModes.size()> seconds;  // a token
  std::array<int64_t, kModes.size()> tokens = {};          // of all rounds
  std::vector<double> gains;                               // of each round
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
    engine.parallel_sessions = static_cast<int>(kModes.size());
    engine_ = Engine::Open(engine);
    RandomTokens random(engine_->tokenizer().vocab_size(), 7);
    const int64_t length = kPromptTokens + options.tokens;
    cases_.resize(2);
    cases_[0].name = "repetitive";
    cases_[0].text = random.Take(kPeriod);
    cases_[1].name = "random";
    cases_[1].text = random.Take(length);
    std::vector<TokenId>& repetitive = cases_[0].text;
    while (std::ssize(repetitive) < length) {
      repetitive.push_back(repetitive[repetitive.size() - kPeriod]);
    }
  }

  BenchReport Run() {
    const Stopwatch watch;
    // What is read at the first use only.
    for (Case& text : cases_) Decode(*Begin(text), 0, options_.tokens - 1, Share());
    double round_seconds = 0;
    for (int round = 1; round == 1 || watch.Seconds() + round_seconds < options_.seconds; ++round) {
      const Stopwatch this_round;
      for (Case& text : cases_) MeasureRound(text, round);
      round_seconds = this_round.Seconds();
    }
    return Report();
  }

 private:
  // Of the time, for one text in one mode in one round.
  double Share() const {
    return options_.seconds /
           static_cast<double>(static_cast<size_t>(kUsualRounds) * cases_.size() * kModes.size());
  }

  // With the prompt read and one token decoded.
  std::unique_ptr<SessionImpl> Begin(const Case& text) {
    std::unique_ptr<SessionImpl> session = NewSessionImpl(*engine_);
    session->set_forced_text(text.text);
    session->Generate(std::span(text.text).first(kPromptTokens), OptionsOf(0, 1));
    return session;
  }

  static GenerateOptions OptionsOf(size_t mode, int64_t tokens) {
    GenerateOptions generate;
    generate.max_new_tokens = tokens;
    generate.stop_at_stop_tokens = false;
    generate.draft_tokens = kModes[mode].draft_tokens;
    return generate;
  }

  // `tokens`, or as many as begin within `seconds`.
  GenerateResult Decode(SessionImpl& session, size_t mode, int64_t tokens, double seconds) {
    GenerateOptions generate = OptionsOf(mode, tokens);
    const Stopwatch watch;
    generate.on_token = [&](TokenId) { return watch.Seconds() < seconds; };
    return session.Generate({}, generate);
  }

  void MeasureRound(Case& text, int round) {
    std::array<std::unique_ptr<SessionImpl>, kModes.size()> sessions;
    for (auto& session : sessions) session = Begin(text);
    const int64_t tokens = options_.tokens - 1;
    const int64_t parts = std::clamp<int64_t>(tokens / kLeastPartTokens, 1, kMostParts);
    const double share = Share();
    std::array<double, kModes.size()> seconds = {};
    std::array<int64_t, kModes.size()> decoded = {};
    const auto is_over = [&] { return seconds[0] + seconds[1] >= 2 * share; };
    for (int64_t part = 0; part < parts && (part == 0 || !is_over()); ++part) {
      const int64_t count = tokens * (part + 1) / parts - tokens * part / parts;
      for (size_t i = 0; i < kModes.size(); ++i) {
        const size_t mode = (part + round) % 2 == 0 ? i : kModes.size() - 1 - i;
        const Stopwatch watch;
        const GenerateResult result =
            Decode(*sessions[mode], mode, count, share / static_cast<double>(parts));
        seconds[mode] += watch.Seconds();
        decoded[mode] += std::ssize(result.tokens);
        text.drafted += result.drafted_tokens;
        text.accepted += result.accepted_tokens;
        text.draft_passes += result.draft_passes;
      }
    }
    for (size_t mode = 0; mode < kModes.size(); ++mode) {
      const double per_token = seconds[mode] / static_cast<double>(decoded[mode]);
      text.seconds[mode].push_back(per_token);
      text.tokens[mode] += decoded[mode];
      if (!options_.on_progress) continue;
      options_.on_progress(format("round {}, {}, {}: {:.4f} s a token, {} tokens", round, text.name,
                                  kModes[mode].name, per_token, decoded[mode]));
    }
    text.gains.push_back(text.seconds[0].back() / text.seconds[1].back());
  }

  BenchReport Report() const {
    BenchReport report;
    report.machine = DescribeMachine();
    for (const Case& text : cases_) {
      for (size_t mode = 0; mode < kModes.size(); ++mode) {
        BenchResult result;
        result.op = "spec " + text.name;
        result.format = kModes[mode].name;
        const int64_t rounds = std::ssize(text.gains);
        result.shape = format("{} tokens, {} rounds", 1 + text.tokens[mode] / rounds, rounds);
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
