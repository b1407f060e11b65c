#include "deltafin/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shared_data.h"

namespace deltafin {
namespace {

class SessionTest : public testing::Test {
 protected:
  static std::unique_ptr<Engine> OpenNano(int64_t context_tokens = 0) {
    EngineOptions options;
    options.model_dir = NanoDir();
    options.context_tokens = context_tokens;
    options.spine = SpineFormat::kBf16;
    return Engine::Open(options);
  }
  static std::vector<TokenId> Ids(Engine& engine, const char* text) {
    return engine.tokenizer().Encode(text, Specials::kPlain);
  }
  static ErrorCode CodeOf(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "no error";
    return ErrorCode::kIo;
  }

  std::unique_ptr<Engine> engine_ = OpenNano();
  std::vector<TokenId> prompt_ = Ids(*engine_, "The capital of France is");
};

TEST_F(SessionTest, GeneratingInPartsGivesTheSameTokens) {
  GenerateOptions options;
  options.stop_at_stop_tokens = false;
  options.max_new_tokens = 30;
  const std::vector<TokenId> whole = engine_->NewSession()->Generate(prompt_, options).tokens;

  const auto session = engine_->NewSession();
  std::vector<TokenId> parts;
  std::span<const TokenId> unread = prompt_;
  for (int64_t count : {1, 2, 7, 20}) {
    options.max_new_tokens = count;
    const GenerateResult result = session->Generate(unread, options);
    EXPECT_EQ(result.finish_reason, FinishReason::kLength);
    parts.insert(parts.end(), result.tokens.begin(), result.tokens.end());
    unread = {};
  }
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(session->tokens().size(), prompt_.size() + whole.size());
}

// The same seed gives the same text however the work is divided, penalties included.
TEST_F(SessionTest, SamplingDependsOnTheSeedAlone) {
  GenerateOptions options;
  options.stop_at_stop_tokens = false;
  options.max_new_tokens = 24;
  options.sampling.temperature = 1.2;
  options.sampling.top_p = 0.95;
  options.sampling.presence_penalty = 0.5;
  options.sampling.frequency_penalty = 0.3;
  options.sampling.seed = 7;
  const std::vector<TokenId> whole = engine_->NewSession()->Generate(prompt_, options).tokens;
  EXPECT_EQ(engine_->NewSession()->Generate(prompt_, options).tokens, whole);

  for (int threads : {1, 3}) {
    EngineOptions other;
    other.model_dir = NanoDir();
    other.threads = threads;
    const auto engine = Engine::Open(other);
    auto session = engine->NewSession();
    GenerateOptions part = options;
    part.max_new_tokens = 5;
    std::vector<TokenId> parts = session->Generate(prompt_, part).tokens;
    const auto snapshot = session->Save();
    session = engine->NewSession();
    session->Restore(*snapshot);
    part.max_new_tokens = 19;
    const std::vector<TokenId> rest = session->Generate({}, part).tokens;
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << threads << " threads";
  }
  options.sampling.seed = 8;
  EXPECT_NE(engine_->NewSession()->Generate(prompt_, options).tokens, whole);
  options.sampling.top_p = 2;
  EXPECT_EQ(CodeOf([&] { engine_->NewSession()->Generate(prompt_, options); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(SessionTest, LogprobsComeWithEveryToken) {
  GenerateOptions options;
  options.max_new_tokens = 5;
  options.stop_at_stop_tokens = false;
  options.top_logprobs = 3;
  const GenerateResult result = engine_->NewSession()->Generate(prompt_, options);
  ASSERT_EQ(result.logprobs.size(), result.tokens.size());
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    ASSERT_EQ(result.logprobs[i].top.size(), 3u);
    EXPECT_EQ(result.logprobs[i].top[0].id, result.tokens[i]);  // greedy
    EXPECT_EQ(result.logprobs[i].top[0].logprob, result.logprobs[i].chosen);
    EXPECT_GE(result.logprobs[i].top[1].logprob, result.logprobs[i].top[2].logprob);
  }
  options.top_logprobs = -1;
  EXPECT_EQ(CodeOf([&] { engine_->NewSession()->Generate(prompt_, options); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(SessionTest, StopTokenEndsAndIsHandedOut) {
  GenerateOptions options;
  options.max_new_tokens = 100;
  std::vector<TokenId> seen;
  options.on_token = [&](TokenId id) {
    seen.push_back(id);
    return true;
  };
  const GenerateResult result = engine_->NewSession()->Generate(prompt_, options);
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  EXPECT_EQ(seen, result.tokens);
  EXPECT_THAT(engine_->stop_tokens(), testing::Contains(result.tokens.back()));
}

TEST_F(SessionTest, CallbackCancelsAfterItsToken) {
  GenerateOptions options;
  options.max_new_tokens = 100;
  options.stop_at_stop_tokens = false;
  int count = 0;
  options.on_token = [&](TokenId) { return ++count < 3; };
  const auto session = engine_->NewSession();
  const GenerateResult result = session->Generate(prompt_, options);
  EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(result.tokens.size(), 3u);
  // Cancelled between passes: the session goes on as if nothing had happened.
  options.on_token = nullptr;
  options.max_new_tokens = 5;
  EXPECT_EQ(session->Generate({}, options).tokens.size(), 5u);
}

// A pass that was cut half way leaves layers at different tokens; going on would be silent
// nonsense.
TEST_F(SessionTest, AfterACancelledPassOnlyRestoreHelps) {
  const auto session = engine_->NewSession();
  session->Append(prompt_, 0, nullptr, nullptr);
  const auto snapshot = session->Save();
  const std::vector<float> logits(session->last_logits().begin(), session->last_logits().end());
  int layers = 0;
  const auto cancel_in_layer_5 = [&] { return ++layers > 5; };
  EXPECT_EQ(CodeOf([&] { session->Append(prompt_, 0, nullptr, cancel_in_layer_5); }),
            ErrorCode::kCancelled);
  EXPECT_EQ(CodeOf([&] { session->Append(prompt_, 0, nullptr, nullptr); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf([&] { (void)session->Save(); }), ErrorCode::kInvalidArgument);

  session->Restore(*snapshot);
  EXPECT_THAT(session->tokens(), testing::ElementsAreArray(prompt_));
  EXPECT_THAT(std::vector<float>(session->last_logits().begin(), session->last_logits().end()),
              testing::ElementsAreArray(logits));
  session->Append(prompt_, 0, nullptr, nullptr);
}

TEST_F(SessionTest, FullContextEndsAGenerationAndRefusesMore) {
  const auto engine = OpenNano(12);
  const auto session = engine->NewSession();
  GenerateOptions options;
  options.max_new_tokens = 100;
  options.stop_at_stop_tokens = false;
  const GenerateResult result = session->Generate(prompt_, options);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(session->tokens().size(), 12u);
  EXPECT_EQ(CodeOf([&] { session->Append(prompt_, 0, nullptr, nullptr); }),
            ErrorCode::kOutOfMemory);
}

TEST_F(SessionTest, RefusesIdsOutsideTheVocabularyAndKeepsWorking) {
  const auto session = engine_->NewSession();
  for (TokenId bad : {-1, 4608}) {
    const std::vector<TokenId> ids = {prompt_[0], bad};
    EXPECT_EQ(CodeOf([&] { session->Append(ids, 0, nullptr, nullptr); }),
              ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(session->tokens().empty());
  EXPECT_EQ(CodeOf([&] { session->Generate({}, {}); }), ErrorCode::kInvalidArgument);
  session->Append(prompt_, 0, nullptr, nullptr);
}

TEST_F(SessionTest, SnapshotOfAnotherEngineIsRefused) {
  const auto other = OpenNano();
  const auto session = other->NewSession();
  session->Append(prompt_, 0, nullptr, nullptr);
  const auto snapshot = session->Save();
  EXPECT_EQ(snapshot->num_tokens(), static_cast<int64_t>(prompt_.size()));
  EXPECT_EQ(CodeOf([&] { engine_->NewSession()->Restore(*snapshot); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(SessionTest, LogitsComeForEveryPositionInOrder) {
  const auto session = engine_->NewSession();
  std::vector<int64_t> positions;
  std::vector<float> last;
  for (int64_t chunk : {2, 0}) {
    session->Append(
        prompt_, chunk,
        [&](int64_t position, std::span<const float> row) {
          positions.push_back(position);
          last.assign(row.begin(), row.end());
        },
        nullptr);
  }
  ASSERT_EQ(positions.size(), 2 * prompt_.size());
  EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
  EXPECT_EQ(positions.back(), static_cast<int64_t>(2 * prompt_.size()) - 1);
  EXPECT_THAT(session->last_logits(), testing::ElementsAreArray(last));
}

}  // namespace
}  // namespace deltafin
