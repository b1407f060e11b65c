#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "deltafin/session.h"
#include "engine/scheduler_test_util.h"
#include "engine/session_impl.h"
#include "small_model.h"
#include "test_rounds.h"

namespace deltafin {
namespace {

class SessionSyncTest : public testing::Test {
 protected:
  static std::unique_ptr<Engine> Open(uint64_t snapshot_bytes) {
    EngineOptions options;
    options.model_dir = SmallModelDir();
    options.context_tokens = 6000;
    options.snapshot_bytes = snapshot_bytes;
    return Engine::Open(options);
  }
  // State and logits are those of a session that never had another text.
  void ExpectState(Session& session, const std::vector<TokenId>& text) {
    EXPECT_EQ(session.tokens(), text);
    const auto fresh = engine_->NewSession();
    fresh->Append(text, 0, nullptr, nullptr);
    ASSERT_TRUE(std::ranges::equal(session.last_logits(), fresh->last_logits()));
    ASSERT_EQ(dynamic_cast<SessionImpl&>(session).state_bytes(),
              dynamic_cast<SessionImpl&>(*fresh).state_bytes());
  }
  static int64_t Sync(Session& session, const std::vector<TokenId>& text) {
    return session.Sync(text, nullptr, nullptr);
  }

  std::unique_ptr<Engine> engine_ = Open(uint64_t{64} << 20);
};

TEST_F(SessionSyncTest, AGrowingTextIsExtended) {
  const auto session = engine_->NewSession();
  std::vector<TokenId> text = {5, 6, 7, 8};
  EXPECT_EQ(Sync(*session, text), 0);
  GenerateOptions options;
  options.max_new_tokens = 6;
  options.stop_at_stop_tokens = false;
  session->Generate({}, options);
  text = session->tokens();
  const int64_t known = std::ssize(text) - 1;  // the last one did not enter the state
  text.insert(text.end(), {20, 21});
  EXPECT_EQ(Sync(*session, text), known);
  ExpectState(*session, text);
  EXPECT_EQ(Sync(*session, text), std::ssize(text));  // nothing to do
  ExpectState(*session, text);
}

TEST_F(SessionSyncTest, GoesBackToTheNearestKeptState) {
  const auto session = engine_->NewSession();
  const std::vector<TokenId> first = {5, 6, 7, 8};
  std::vector<TokenId> second = first;
  second.insert(second.end(), {9, 10, 11});
  Sync(*session, first);
  Sync(*session, second);
  std::vector<TokenId> other = first;
  other.insert(other.end(), {9, 10, 12, 13});  // differs after 6, states at 4 and 7
  EXPECT_EQ(Sync(*session, other), 4);
  ExpectState(*session, other);
  EXPECT_EQ(Sync(*session, second), 7);  // the text before was kept too
  ExpectState(*session, second);
  EXPECT_EQ(Sync(*session, {5, 6, 7}), 0);  // a state cannot be cut
  ExpectState(*session, {5, 6, 7});
}

TEST_F(SessionSyncTest, AnyOrderOfTextsGivesTheStateOfTheText) {
  std::mt19937 random(3);
  const auto small = Open(uint64_t{3} << 20);  // two states of a short text
  for (Engine* engine : {engine_.get(), small.get()}) {
    const auto session = engine->NewSession();
    std::vector<TokenId> text;
    for (int i = 0; i < Rounds(40); ++i) {
      text.resize(random() % (text.size() + 1));
      const auto more = RandomTokens(random, engine->info().vocab_size, 1 + random() % 20);
      text.insert(text.end(), more.begin(), more.end());
      const int64_t reused = Sync(*session, text);
      EXPECT_LE(reused, std::ssize(text));
      ExpectState(*session, text);
    }
  }
}

TEST_F(SessionSyncTest, GoesOnAfterAnInterruption) {
  const auto session = engine_->NewSession();
  std::mt19937 random(4);
  const auto text = RandomTokens(random, engine_->info().vocab_size, 5000);
  int64_t layers = 0;
  std::vector<PrefillProgress> seen;
  const auto interrupted = [&] {
    return ++layers > 9 * engine_->info().num_layers;  // the states of 2,048 and 4,096 are kept
  };
  const auto progress = [&](const PrefillProgress& p) { seen.push_back(p); };
  EXPECT_THROW(session->Sync(text, interrupted, progress), Error);
  EXPECT_THROW(session->Append(text, 0, nullptr, nullptr), Error);
  ASSERT_FALSE(seen.empty());
  for (size_t i = 1; i < seen.size(); ++i) {
    EXPECT_GE(seen[i].done(), seen[i - 1].done());
    EXPECT_EQ(seen[i].tokens, 5000);
    EXPECT_GE(seen[i].seconds_left, 0);
  }
  EXPECT_LT(seen.back().done(), 1);
  const int64_t reused = Sync(*session, text);
  EXPECT_GE(reused, 2048);
  ExpectState(*session, text);
}

TEST_F(SessionSyncTest, RefusesWhatCannotBeAText) {
  const auto session = engine_->NewSession();
  Sync(*session, {1, 2, 3});
  EXPECT_THROW(Sync(*session, {}), Error);
  EXPECT_THROW(Sync(*session, {-1}), Error);
  EXPECT_THROW(Sync(*session, std::vector<TokenId>(6001)), Error);
  ExpectState(*session, {1, 2, 3});
}

}  // namespace
}  // namespace deltafin
