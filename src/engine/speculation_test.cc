// Drafts change the time, never a token nor a bit of the state.
#include <gtest/gtest.h>

#include <random>

#include "engine/session_impl.h"
#include "least_budget.h"
#include "shared_data.h"
#include "test_rounds.h"

namespace deltafin {
namespace {

// Guesses from a list of what is right, wrong wherever `wrong(position)` says so.
class PatternSource : public DraftSource {
 public:
  PatternSource(std::vector<TokenId> text, std::function<bool(size_t)> wrong)
      : text_(std::move(text)), wrong_(std::move(wrong)) {}
  Draft Propose(std::span<const TokenId> text, int64_t max_tokens) override {
    Draft draft{{}, 4};
    for (size_t at = text.size(); std::ssize(draft.tokens) < max_tokens; ++at) {
      const TokenId right = at < text_.size() ? text_[at] : 17;
      draft.tokens.push_back(wrong_(at) ? (right + 1) % 4000 : right);
    }
    return draft;
  }
  void Reset() override {}

 private:
  std::vector<TokenId> text_;
  std::function<bool(size_t)> wrong_;
};

class SpeculationTest : public testing::Test {
 protected:
  static std::unique_ptr<Engine> OpenNano(int64_t max_draft, int64_t context = 512) {
    EngineOptions options;
    options.model_dir = NanoDir();
    options.context_tokens = context;
    options.max_draft_tokens = max_draft;
    return Engine::Open(options);
  }
  std::vector<TokenId> RandomPrompt(size_t size, uint32_t seed) const {
    std::minstd_rand random(seed);
    std::vector<TokenId> prompt(size);
    for (TokenId& id : prompt) id = static_cast<TokenId>(random() % 4352);
    return prompt;
  }
  static GenerateOptions Options(int64_t tokens, double temperature) {
    GenerateOptions options;
    options.max_new_tokens = tokens;
    options.stop_at_stop_tokens = false;
    options.top_logprobs = 2;
    options.sampling.temperature = temperature;
    options.sampling.top_p = temperature > 0 ? 0.9 : 1;
    options.sampling.frequency_penalty = temperature > 0 ? 0.1 : 0;
    options.sampling.seed = 11;
    return options;
  }
  static std::vector<std::byte> State(const Session& session) {
    return static_cast<const SessionImpl&>(session).state_bytes();
  }
  static void ExpectSame(const Session& a, const Session& b, const GenerateResult& ra,
                         const GenerateResult& rb) {
    EXPECT_EQ(ra.tokens, rb.tokens);
    EXPECT_EQ(ra.finish_reason, rb.finish_reason);
    EXPECT_EQ(a.tokens(), b.tokens());
    EXPECT_TRUE(State(a) == State(b));
    EXPECT_TRUE(std::ranges::equal(a.last_logits(), b.last_logits()));
    ASSERT_EQ(ra.logprobs.size(), rb.logprobs.size());
    for (size_t i = 0; i < ra.logprobs.size(); ++i) {
      EXPECT_EQ(ra.logprobs[i].chosen, rb.logprobs[i].chosen);
    }
  }
  static void UseSource(Session& session, const std::vector<TokenId>& text,
                        std::function<bool(size_t)> wrong) {
    static_cast<SessionImpl&>(session).set_draft_source(
        std::make_unique<PatternSource>(text, std::move(wrong)));
  }

  std::unique_ptr<Engine> engine_ = OpenNano(kMaxDraftTokens);
};

// Every draft length, with the first wrong guess at every place of it.
TEST_F(SpeculationTest, RejectionAtEveryPointChangesNothing) {
  for (double temperature : SomeOf({0.0, 1.0})) {
    const std::vector<TokenId> prompt = RandomPrompt(5, 1);
    GenerateOptions options = Options(20, temperature);
    const auto plain = engine_->NewSession();
    const GenerateResult expected = plain->Generate(prompt, options);
    for (int64_t length = 1; length <= kMaxDraftTokens; ++length) {
      for (size_t period = 1; period <= static_cast<size_t>(length) + 1; ++period) {
        SCOPED_TRACE(testing::Message() << length << " guesses, every " << period << " wrong");
        options.draft_tokens = length;
        const auto session = engine_->NewSession();
        UseSource(*session, plain->tokens(), [=](size_t at) { return at % period == period - 1; });
        const GenerateResult result = session->Generate(prompt, options);
        ExpectSame(*session, *plain, result, expected);
        EXPECT_GT(result.draft_passes, 0);
        EXPECT_LE(result.accepted_tokens, result.drafted_tokens);
        if (period == 1) {
          EXPECT_EQ(result.accepted_tokens, 0);
        } else {
          EXPECT_GT(result.accepted_tokens, 0);
        }
      }
    }
  }
}

TEST_F(SpeculationTest, RandomPromptsAndGuesses) {
  for (int round = 0; round < Rounds(12); ++round) {
    const auto seed = static_cast<uint32_t>(round);
    const std::vector<TokenId> prompt = RandomPrompt(1 + seed * 7, seed + 100);
    GenerateOptions options = Options(24, seed % 2 == 0 ? 0 : 0.8);
    const auto plain = engine_->NewSession();
    const GenerateResult expected = plain->Generate(prompt, options);

    const auto guessing = engine_->NewSession();
    std::minstd_rand random(seed + 1);
    UseSource(*guessing, plain->tokens(), [&](size_t) { return random() % 3 == 0; });
    options.draft_tokens = 1 + seed % kMaxDraftTokens;
    ExpectSame(*guessing, *plain, guessing->Generate(prompt, options), expected);

    for (int64_t draft : {kAutoDraft, kMaxDraftTokens}) {  // the real source
      options.draft_tokens = draft;
      const auto session = engine_->NewSession();
      ExpectSame(*session, *plain, session->Generate(prompt, options), expected);
    }
  }
}

// Right guesses only: 1 + k tokens a pass, and not one more than was asked for.
TEST_F(SpeculationTest, RightGuessesSavePasses) {
  const std::vector<TokenId> prompt = RandomPrompt(3, 2);
  for (int64_t tokens : {1, 2, 9, 10, 19, 25}) {
    GenerateOptions options = Options(tokens, 0);
    const auto plain = engine_->NewSession();
    const GenerateResult expected = plain->Generate(prompt, options);
    options.draft_tokens = 8;
    const auto session = engine_->NewSession();
    UseSource(*session, plain->tokens(), [](size_t) { return false; });
    const GenerateResult result = session->Generate(prompt, options);
    ExpectSame(*session, *plain, result, expected);
    EXPECT_EQ(result.draft_passes, (tokens - 1 + 8) / 9 - ((tokens - 1) % 9 == 1 ? 1 : 0));
    EXPECT_EQ(result.accepted_tokens, result.drafted_tokens);
  }
}

// Stop tokens, cancellation and a full context inside a draft.
TEST_F(SpeculationTest, EndsInsideADraftAreTheSame) {
  const std::vector<TokenId> prompt =
      engine_->tokenizer().Encode("The capital of France is", Specials::kPlain);
  GenerateOptions options = Options(40, 0);
  options.stop_at_stop_tokens = true;
  for (int cancel_at : {0, 1, 2, 3}) {
    int seen = 0;
    if (cancel_at > 0) options.on_token = [&](TokenId) { return ++seen < cancel_at; };
    const auto plain = engine_->NewSession();
    options.draft_tokens = 0;
    const GenerateResult expected = plain->Generate(prompt, options);
    seen = 0;
    options.draft_tokens = 8;
    const auto session = engine_->NewSession();
    std::vector<TokenId> text = plain->tokens();
    UseSource(*session, text, [](size_t) { return false; });
    ExpectSame(*session, *plain, session->Generate(prompt, options), expected);
  }

  const auto small = OpenNano(8, 16);
  options = Options(40, 0);
  const auto plain = small->NewSession();
  const GenerateResult expected = plain->Generate(prompt, options);
  options.draft_tokens = 8;
  const auto session = small->NewSession();
  UseSource(*session, plain->tokens(), [](size_t) { return false; });
  ExpectSame(*session, *plain, session->Generate(prompt, options), expected);
}

// A callback that throws leaves the session as if the pass had ended there.
TEST_F(SpeculationTest, ThrowingCallbackLeavesAUsableSession) {
  const std::vector<TokenId> prompt = RandomPrompt(4, 3);
  const auto plain = engine_->NewSession();
  const GenerateResult expected = plain->Generate(prompt, Options(12, 0));

  const auto session = engine_->NewSession();
  UseSource(*session, plain->tokens(), [](size_t) { return false; });
  GenerateOptions options = Options(12, 0);
  options.draft_tokens = 8;
  int seen = 0;
  options.on_token = [&](TokenId) -> bool {
    if (++seen == 4) throw std::runtime_error("enough");
    return true;
  };
  EXPECT_THROW(session->Generate(prompt, options), std::runtime_error);
  EXPECT_EQ(session->tokens().size(), prompt.size() + 4);
  options = Options(8, 0);
  session->Generate({}, options);
  EXPECT_EQ(session->tokens(), plain->tokens());
  EXPECT_TRUE(State(*session) == State(*plain));
}

TEST_F(SpeculationTest, RestoringForgetsTheText) {
  const auto session = engine_->NewSession();
  GenerateOptions options = Options(10, 0);
  options.draft_tokens = 4;
  session->Append(RandomPrompt(5, 1), 0, nullptr, nullptr);
  const auto snapshot = session->Save();
  session->Generate(RandomPrompt(50, 4), options);
  session->Restore(*snapshot);
  const GenerateResult again = session->Generate(RandomPrompt(9, 5), options);
  const auto plain = engine_->NewSession();
  plain->Append(RandomPrompt(5, 1), 0, nullptr, nullptr);
  options.draft_tokens = 0;
  ExpectSame(*session, *plain, again, plain->Generate(RandomPrompt(9, 5), options));
}

TEST_F(SpeculationTest, ThePlanKnowsTheMemory) {
  const auto without = OpenNano(0);
  const auto state_bytes = [](const Engine& engine) {
    for (const PlanLine& line : engine.plan()) {
      if (line.what == "session state") return line.bytes;
    }
    return uint64_t{0};
  };
  const auto& impl = static_cast<const EngineImpl&>(*engine_);
  EXPECT_EQ(state_bytes(*engine_) - state_bytes(*without),
            Speculation::Bytes(impl.config(), kMaxDraftTokens));
  EXPECT_EQ(Speculation::Bytes(impl.config(), 0), 0u);
  EXPECT_EQ(engine_->info().max_draft_tokens, kMaxDraftTokens);

  GenerateOptions options = Options(4, 0);
  options.draft_tokens = 1;
  EXPECT_THROW(without->NewSession()->Generate(RandomPrompt(3, 1), options), Error);
  options.draft_tokens = kAutoDraft;
  EXPECT_EQ(without->NewSession()->Generate(RandomPrompt(3, 1), options).draft_passes, 0);
  EXPECT_THROW(OpenNano(9), Error);
  EXPECT_THROW(OpenNano(-2), Error);
}

// The smallest budget that the error names is enough, whatever a larger one would be used for.
TEST_F(SpeculationTest, DraftsThatNobodyAskedForGiveWay) {
  EngineOptions options;
  options.model_dir = NanoDir();
  options.context_tokens = 200'000;
  options.ram_bytes = LeastRam(options);
  const auto engine = OpenAndFollow(options);
  EXPECT_GE(options.ram_bytes / 16, Speculation::Bytes(engine->config(), kMaxDraftTokens));
  EXPECT_EQ(engine->info().max_draft_tokens, 0);
  options.max_draft_tokens = kMaxDraftTokens;
  EXPECT_THROW(EngineImpl{options}, Error);
}

}  // namespace
}  // namespace deltafin
