// Contexts that are longer than their part of the RAM: the same bits, and clear errors.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "engine/engine_impl.h"
#include "engine/scheduler_test_util.h"
#include "engine/session_impl.h"
#include "io/testing_file_system.h"

namespace deltafin {
namespace {

class ContextSpillTest : public testing::Test {
 protected:
  ContextSpillTest() { std::filesystem::create_directories(folder_); }
  ~ContextSpillTest() override { std::filesystem::remove_all(folder_); }

  // `pages` of each MLA layer of a session stay in RAM; negative: all.
  std::unique_ptr<EngineImpl> Open(int64_t pages, int sessions = 1) {
    EngineOptions options;
    options.model_dir = SmallModelDir();
    options.context_tokens = 2'000;
    options.max_draft_tokens = kMaxDraftTokens;
    options.parallel_sessions = sessions;
    options.snapshot_bytes = sessions > 1 ? uint64_t{16} << 20 : 0;
    options.spill_dir = folder_;
    if (pages >= 0) {
      options.context_ram_bytes =
          static_cast<uint64_t>(sessions) * static_cast<uint64_t>(pages) * (OnePage() + 1);
    }
    EngineParts parts;
    parts.files = &files_;
    parts.keep_heat = false;
    auto engine = std::make_unique<EngineImpl>(options, parts);
    EXPECT_EQ(engine->cache_spill() == nullptr, pages < 0);
    EXPECT_EQ(engine->info().context_tokens_in_ram,
              pages < 0 ? options.context_tokens : pages * kCachePageTokens);
    return engine;
  }
  // Of all MLA layers.
  uint64_t OnePage() const {
    return SequenceState::Bytes(whole_config_, CacheFormat::kF32, 1) -
           SequenceState::Bytes(whole_config_, CacheFormat::kF32, 0);
  }
  std::vector<TokenId> Prompt(size_t count, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<TokenId> prompt = RandomTokens(random, 256, count / 2);
    prompt.insert(prompt.end(), prompt.begin(), prompt.end());  // for guesses
    return prompt;
  }
  static std::vector<std::byte> State(const Session& session) {
    return static_cast<const SessionImpl&>(session).state_bytes();
  }

  const std::string folder_ =
      testing::TempDir() + "context_spill_test_" + std::to_string(::getpid());
  FaultyFileSystem files_{RealFileSystem()};
  const ModelConfig whole_config_ = Checkpoint::Open(RealFileSystem(), SmallModelDir())->config();
};

TEST_F(ContextSpillTest, TextAndStateAreTheSame) {
  const auto whole = Open(-1);
  const std::vector<TokenId> prompt = Prompt(900, 1);
  for (const int64_t pages : SomeOf<int64_t>({1, 0, 3})) {
    const auto spilling = Open(pages);
    for (const double temperature : {0.0, 0.9}) {
      GenerateOptions options;
      options.max_new_tokens = 160;  // across a page
      options.stop_at_stop_tokens = false;
      options.sampling.temperature = temperature;
      options.sampling.seed = 3;
      const auto expected = whole->NewSession();
      const GenerateResult want = expected->Generate(prompt, options);
      const auto session = spilling->NewSession();
      session->Append(std::span(prompt).first(300), 37, nullptr, nullptr);
      options.draft_tokens = 5;
      const GenerateResult got = session->Generate(std::span(prompt).subspan(300), options);
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_GT(got.draft_passes, 0);
      EXPECT_LT(got.accepted_tokens, got.drafted_tokens);
      EXPECT_TRUE(std::ranges::equal(session->last_logits(), expected->last_logits()));
      EXPECT_TRUE(State(*session) == State(*expected));
    }
    EXPECT_GT(spilling->counters().context_bytes, 0u);
  }
}

TEST_F(ContextSpillTest, SavedSessionsFitBothWays) {
  const auto whole = Open(-1);
  const auto spilling = Open(1);
  const std::vector<TokenId> prompt = Prompt(1'000, 2);
  GenerateOptions options;
  options.max_new_tokens = 30;
  options.stop_at_stop_tokens = false;
  Engine* const engines[] = {whole.get(), spilling.get()};
  const std::string path = folder_ + "/saved.session";
  std::vector<std::vector<TokenId>> texts;
  for (Engine* const from : engines) {
    for (Engine* const to : engines) {
      const auto first = from->NewSession();
      first->Generate(prompt, options);
      first->SaveTo(path, "");
      const auto second = to->NewSession();
      second->RestoreFrom(path);
      EXPECT_TRUE(State(*first) == State(*second));
      second->Generate({}, options);
      texts.push_back(second->tokens());
      const auto snapshot = second->Save();
      second->Generate(std::span(prompt).first(300), options);
      second->Restore(*snapshot);
      EXPECT_EQ(second->tokens(), texts[0]);
      second->Sync(std::span(prompt).first(700), nullptr, nullptr);
    }
  }
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
}

// Answers side by side, states that are kept and gone on from.
TEST_F(ContextSpillTest, ScheduledAnswersAreTheSame) {
  const auto whole = Open(-1);
  const auto spilling = Open(1, 2);
  SchedulerOptions scheduler_options;
  scheduler_options.parallel = 2;
  scheduler_options.snapshot_bytes = uint64_t{16} << 20;
  const auto scheduler = Scheduler::Create(*spilling, scheduler_options);
  std::mt19937 random(9);
  std::vector<Job> jobs;
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (int i = 0; i < 8; ++i) {
    Job job = RandomJob(random, 256, 900);
    if (i % 3 == 2) {  // goes on from an earlier one
      job.prompt = jobs[static_cast<size_t>(i) - 2].prompt;
      job.prompt.insert(job.prompt.end(), 30, 77);
    }
    jobs.push_back(job);
    recorders.push_back(std::make_unique<Recorder>());
    recorders.back()->Attach(&job);
    ASSERT_TRUE(scheduler->Submit(std::move(job)).has_value());
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(recorders[i]->Wait().error, "");
    ExpectSameAsAlone(*whole, jobs[i], *recorders[i]);
  }
}

// Of two answers in a pass one needs the disk, which is full: that one ends with a message, the
// other does not notice. So does the one after it when there is room again.
TEST_F(ContextSpillTest, AFullDiskEndsTheAnswerThatNeedsIt) {
  const auto whole = Open(-1);
  const auto spilling = Open(1, 2);
  for (const bool full : SomeOf({true, false})) {
    SchedulerOptions scheduler_options;
    scheduler_options.parallel = 2;
    const auto scheduler = Scheduler::Create(*spilling, scheduler_options);
    Job small;
    small.prompt = Prompt(30, 4);
    small.max_new_tokens = 200;
    small.stop_at_stop_tokens = false;
    Job large = small;
    large.prompt = Prompt(1'200, 5);
    large.max_new_tokens = 10;
    Recorder of_small, of_large, of_last;
    Job job = small;
    of_small.Attach(&job);
    if (full) {
      files_.FailWrites(ErrorCode::kNoSpace, 0, 1'000);
    } else {
      files_.FailReads("scratch", 5, 1'000);
    }
    ASSERT_TRUE(scheduler->Submit(std::move(job)).has_value());
    of_small.WaitForTokens(3);
    job = large;
    of_large.Attach(&job);
    ASSERT_TRUE(scheduler->Submit(std::move(job)).has_value());
    const std::string error = of_large.Wait().error;
    EXPECT_NE(error.find("latent cache"), std::string::npos) << error;
    EXPECT_EQ(of_small.Wait().error, "");
    ExpectSameAsAlone(*whole, small, of_small);
    files_.ClearFaults();
    job = large;
    of_last.Attach(&job);
    ASSERT_TRUE(scheduler->Submit(std::move(job)).has_value());
    EXPECT_EQ(of_last.Wait().error, "");
    ExpectSameAsAlone(*whole, large, of_last);
  }
}

TEST_F(ContextSpillTest, ASessionSaysWhatFailed) {
  const auto spilling = Open(0);
  const auto session = spilling->NewSession();
  files_.FailWrites(ErrorCode::kNoSpace, 0, 1'000);
  GenerateOptions options;
  options.max_new_tokens = 1;
  try {
    session->Generate(Prompt(600, 6), options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNoSpace);
  }
  files_.ClearFaults();
  EXPECT_EQ(session->Sync(Prompt(600, 6), nullptr, nullptr), 0);
}

// Half of a state, and the rest of another: no token may come from that.
TEST_F(ContextSpillTest, AStateThatIsRestoredByHalfIsOfNoUse) {
  const auto spilling = Open(0);
  const auto session = spilling->NewSession();
  const std::vector<TokenId> prompt = Prompt(900, 7);
  session->Append(prompt, 0, nullptr, nullptr);
  const auto snapshot = session->Save();
  const std::string path = folder_ + "/half.session";
  session->SaveTo(path, "");
  session->Append(std::span(prompt).first(10), 0, nullptr, nullptr);
  GenerateOptions options;
  options.max_new_tokens = 1;
  for (const bool from_file : {false, true}) {
    const auto restore = [&] {
      from_file ? static_cast<void>(session->RestoreFrom(path)) : session->Restore(*snapshot);
    };
    files_.FailWrites(ErrorCode::kNoSpace, 1, 1'000);
    EXPECT_THROW(restore(), Error);
    files_.ClearFaults();
    EXPECT_THROW(session->Generate({}, options), Error);
    EXPECT_THROW(session->Save(), Error);
    restore();
    EXPECT_EQ(session->tokens(), prompt);
    EXPECT_NO_THROW(session->Generate({}, options));
  }
}

TEST_F(ContextSpillTest, ThePlanCountsWhatIsInRam) {
  const uint64_t all = Open(-1)->memory_plan().state_bytes;
  const uint64_t part = Open(1)->memory_plan().state_bytes;
  // 2,000 tokens are eight pages; one and the last one are in RAM, besides the ring for the file.
  const uint64_t ring = CacheSpill::Bytes(whole_config_, CacheFormat::kF32, {1, 512, 2});
  EXPECT_GE(part, all - 6 * OnePage() + ring / 4);
  EXPECT_LE(part, all - 6 * OnePage() + 8 * ring);
}

}  // namespace
}  // namespace deltafin
