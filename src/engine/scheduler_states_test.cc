// Prompts that begin as earlier ones did.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <thread>

#include "engine/scheduler_test_util.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

class SchedulerStatesTest : public testing::Test {
 protected:
  SchedulerStatesTest() {
    folder_ = (fs::path(testing::TempDir()) /
               ("deltafin_scheduler_" + std::to_string(::getpid()) +
                std::string(testing::UnitTest::GetInstance()->current_test_info()->name())))
                  .string();
    fs::remove_all(folder_);
  }
  ~SchedulerStatesTest() override { fs::remove_all(folder_); }

  static std::unique_ptr<Engine> OpenSmall(int parallel) {
    EngineOptions options;
    options.model_dir = SmallModelDir();
    options.context_tokens = 2'000;
    options.parallel_sessions = parallel;
    options.snapshot_bytes = uint64_t{32} << 20;
    options.max_draft_tokens = 4;
    return Engine::Open(options);
  }
  std::unique_ptr<Scheduler> NewScheduler(int parallel, uint64_t snapshot_bytes, bool folder) {
    SchedulerOptions options;
    options.parallel = parallel;
    options.snapshot_bytes = snapshot_bytes;
    options.state_dir = folder ? folder_ : "";
    options.snapshot_tokens = 64;
    return Scheduler::Create(*engine_, options);
  }
  Job MakeJob(const std::vector<TokenId>& prompt, int64_t tokens) {
    Job job;
    job.prompt = prompt;
    job.max_new_tokens = tokens;
    job.stop_at_stop_tokens = false;
    return job;
  }
  // Runs it to its end and checks what came.
  JobResult Run(Scheduler& scheduler, const Job& job, std::vector<TokenId>* ids = nullptr) {
    Recorder recorder;
    Job copy = job;
    recorder.Attach(&copy);
    EXPECT_TRUE(scheduler.Submit(std::move(copy)));
    JobResult result = recorder.Wait();
    EXPECT_EQ(result.error, "");
    while (scheduler.stats().running > 0) std::this_thread::yield();  // its state is being kept
    ExpectSameAsAlone(*alone_, job, recorder);
    if (ids != nullptr) *ids = recorder.ids();
    return result;
  }
  std::vector<TokenId> Random(uint32_t seed, size_t count) {
    std::mt19937 random(seed);
    return RandomTokens(random, engine_->info().vocab_size, count);
  }
  void ShareASystemMessage(uint64_t ram);
  static std::vector<TokenId> Joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  std::unique_ptr<Engine> engine_ = OpenSmall(3);
  std::unique_ptr<Engine> alone_ = OpenSmall(1);
  std::string folder_;
  static constexpr uint64_t kRam = uint64_t{32} << 20;
};

// Without any room the state that the last answer left is gone on from.
TEST_F(SchedulerStatesTest, AGrowingConversationComputesWhatIsNew) {
  for (uint64_t ram : {uint64_t{0}, kRam}) {
    const auto scheduler = NewScheduler(1, ram, false);
    std::vector<TokenId> text = Random(1, 100);
    std::vector<TokenId> ids;
    EXPECT_EQ(Run(*scheduler, MakeJob(text, 20), &ids).cached_tokens, 0);
    for (uint32_t turn = 2; turn < 5; ++turn) {
      text = Joined(text, ids);
      const int64_t known = std::ssize(text) - 1;  // the last token did not enter the state
      text = Joined(text, Random(turn, 10));
      EXPECT_EQ(Run(*scheduler, MakeJob(text, 20), &ids).cached_tokens, known);
    }
  }
}

// The states inside the first prompt are captured in its one pass, or end passes where there is no
// room in RAM.
TEST_F(SchedulerStatesTest, ASystemMessageIsShared) {
  for (uint64_t ram : {kRam, uint64_t{0}}) {
    ShareASystemMessage(ram);
    fs::remove_all(folder_);
  }
}

TEST_F(SchedulerStatesTest, APromptIsComputedFromItsStartWhereThatIsWanted) {
  SchedulerOptions options;
  options.always_from_start = true;
  const auto scheduler = Scheduler::Create(*engine_, options);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Run(*scheduler, MakeJob(Random(1, 40), 5)).cached_tokens, 0);
  }
  EXPECT_EQ(scheduler->stats().prompt_tokens, 80u);
}

void SchedulerStatesTest::ShareASystemMessage(uint64_t ram) {
  const auto scheduler = NewScheduler(2, ram, ram == 0);
  const std::vector<TokenId> system = Random(1, 90);
  Job first = MakeJob(Joined(system, Random(2, 30)), 5);
  first.shared_lengths = {90, 120};
  EXPECT_EQ(Run(*scheduler, first).cached_tokens, 0);
  EXPECT_EQ(scheduler->stats().passes, ram == 0 ? 6u : 5u);
  for (uint32_t seed : {3u, 4u, 5u}) {
    EXPECT_EQ(Run(*scheduler, MakeJob(Joined(system, Random(seed, 20)), 5)).cached_tokens, 90);
  }
  // The same question again, chosen in another way.
  Job again = first;
  again.sampling.temperature = 1;
  EXPECT_EQ(Run(*scheduler, again).cached_tokens, 120);
  EXPECT_EQ(scheduler->stats().snapshot_bytes > 0, ram > 0);
  EXPECT_LE(scheduler->stats().snapshot_bytes, ram);
}

// Several answers to one question: it is read once.
TEST_F(SchedulerStatesTest, PromptsThatBeginAlikeAreReadOnce) {
  const auto scheduler = NewScheduler(3, kRam, false);
  std::vector<Job> jobs;
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    Job job = MakeJob(Random(1, 150), 10);
    job.shared_lengths = {100, 147};
    job.sampling.temperature = 1;
    job.sampling.seed = seed;
    jobs.push_back(job);
    recorders.push_back(std::make_unique<Recorder>());
    recorders.back()->Attach(&job);
    ASSERT_TRUE(scheduler->Submit(std::move(job)));
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GE(recorders[i]->Wait().cached_tokens, i == 0 ? 0 : 147);
    ExpectSameAsAlone(*alone_, jobs[i], *recorders[i]);
  }
  EXPECT_LE(scheduler->stats().prompt_tokens, 156u);
}

TEST_F(SchedulerStatesTest, AnAnswerThatWasCutOffGoesOn) {
  const auto scheduler = NewScheduler(1, kRam, false);
  const std::vector<TokenId> prompt = Random(1, 50);
  Run(*scheduler, MakeJob(prompt, 30));
  const auto before = scheduler->stats();
  EXPECT_EQ(Run(*scheduler, MakeJob(prompt, 80)).cached_tokens, 50);
  const auto after = scheduler->stats();
  EXPECT_EQ(after.passes - before.passes, 50u);                  // 30 tokens were there
  EXPECT_EQ(Run(*scheduler, MakeJob(prompt, 7)).new_tokens, 7);  // fewer than are there
  Job logprobs = MakeJob(prompt, 30);
  logprobs.top_logprobs = 2;
  Run(*scheduler, logprobs);
}

// Clients have time limits, and ask the same again.
TEST_F(SchedulerStatesTest, ACancelledAnswerGoesOn) {
  const auto scheduler = NewScheduler(1, kRam, false);
  for (int round = 0; round < Rounds(4); ++round) {  // most are cancelled in the middle of a pass
    Job job = MakeJob(Random(10 + static_cast<uint32_t>(round), 50), LongAnswer());
    job.draft_tokens = round % 2 == 0 ? 0 : 4;
    Recorder recorder;
    Job first = job;
    recorder.Attach(&first);
    const auto id = scheduler->Submit(std::move(first));
    ASSERT_TRUE(id);
    recorder.WaitForTokens(30);
    scheduler->Cancel(*id);
    EXPECT_EQ(recorder.Wait().finish_reason, FinishReason::kCancelled);
    const auto had = std::ssize(recorder.tokens());
    const uint64_t new_tokens = scheduler->stats().new_tokens;
    job.max_new_tokens = had + 90;
    Run(*scheduler, job);
    EXPECT_LE(scheduler->stats().new_tokens - new_tokens, 90u);
  }
}

TEST_F(SchedulerStatesTest, ARestartFindsWhatWasThere) {
  const std::vector<TokenId> prompt = Random(1, 100);
  std::vector<TokenId> ids;
  {
    const auto scheduler = NewScheduler(1, 0, true);
    Run(*scheduler, MakeJob(prompt, 20), &ids);
    EXPECT_GT(scheduler->stats().state_dir_bytes, 0u);
  }
  engine_ = OpenSmall(3);
  const auto scheduler = NewScheduler(2, kRam, true);
  const std::vector<TokenId> text = Joined(Joined(prompt, ids), {7, 8, 9});
  EXPECT_EQ(Run(*scheduler, MakeJob(text, 10)).cached_tokens, 119);
  EXPECT_EQ(scheduler->stats().failed_states, 0u);
}

TEST_F(SchedulerStatesTest, StopSavesWhatItCutsOff) {
  const std::vector<TokenId> prompt = Random(1, 100);
  int64_t had = 0;
  {
    const auto scheduler = NewScheduler(1, 0, true);
    Recorder recorder;
    Job job = MakeJob(prompt, LongAnswer());
    recorder.Attach(&job);
    ASSERT_TRUE(scheduler->Submit(std::move(job)));
    recorder.WaitForTokens(30);
    scheduler->Stop(0);
    had = std::ssize(recorder.tokens());
    EXPECT_LT(had, LongAnswer());
    EXPECT_EQ(recorder.Wait().finish_reason, FinishReason::kCancelled);
  }
  const auto scheduler = NewScheduler(1, 0, true);
  const JobResult result = Run(*scheduler, MakeJob(prompt, had + 50));
  EXPECT_EQ(result.cached_tokens, 100);
  EXPECT_LE(scheduler->stats().passes, 51u);
}

// Nothing but the passing states is there of a process that was killed: the destructor breaks off.
TEST_F(SchedulerStatesTest, StatesOnTheWaySurvive) {
  const std::vector<TokenId> prompt = Random(1, 200);
  {
    const auto scheduler = NewScheduler(1, 0, true);
    Recorder recorder;
    Job job = MakeJob(prompt, LongAnswer());
    recorder.Attach(&job);
    ASSERT_TRUE(scheduler->Submit(std::move(job)));
    recorder.WaitForTokens(100);
  }
  const auto scheduler = NewScheduler(1, 0, true);
  EXPECT_EQ(Run(*scheduler, MakeJob(prompt, 150)).cached_tokens, 200);
  EXPECT_LE(scheduler->stats().passes, 150u - 63u);
}

TEST_F(SchedulerStatesTest, PromptLogprobsNeedEveryPosition) {
  const auto scheduler = NewScheduler(1, kRam, false);
  const std::vector<TokenId> prompt = Random(1, 50);
  Run(*scheduler, MakeJob(prompt, 3));
  Job job = MakeJob(prompt, 3);
  job.prompt_logprobs = true;
  EXPECT_EQ(Run(*scheduler, job).cached_tokens, 0);
}

TEST_F(SchedulerStatesTest, SharedLengthsMustLieInThePrompt) {
  const auto scheduler = NewScheduler(1, kRam, false);
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{0}, {4}, {2, 1}}) {
    Job job = MakeJob({1, 2, 3}, 1);
    job.shared_lengths = lengths;
    EXPECT_THROW((void)scheduler->Submit(std::move(job)), Error);
  }
}

// Conversations that grow, fork, are repeated, cancelled and joined, with little room.
TEST_F(SchedulerStatesTest, WhateverIsReusedTheBitsStay) {
  std::mt19937 random(8);
  for (bool folder : {false, true}) {
    const auto scheduler = NewScheduler(3, uint64_t{6} << 20, folder);
    std::vector<std::vector<TokenId>> texts = {Random(1, 40)};
    for (int round = 0; round < Rounds(12); ++round) {
      std::vector<std::unique_ptr<Recorder>> recorders;
      std::vector<Job> jobs;
      std::vector<bool> cancelled;
      for (int i = 0; i < 4; ++i) {
        Job job = RandomJob(random, engine_->info().vocab_size, 40);
        const std::vector<TokenId>& base = texts[random() % texts.size()];
        std::vector<TokenId> begin(base.begin(), base.begin() + 1 + random() % base.size());
        if (random() % 2 == 0) begin = base;
        if (begin.size() + job.prompt.size() > 550) begin.clear();
        job.prompt = random() % 4 == 0 && !begin.empty() ? begin : Joined(begin, job.prompt);
        const auto length = std::ssize(job.prompt);
        if (random() % 2 == 0) {
          const int64_t shared = 1 + random() % length;
          job.shared_lengths = {shared, length};
        }
        jobs.push_back(job);
        recorders.push_back(std::make_unique<Recorder>());
        recorders.back()->Attach(&job);
        const JobId id = *scheduler->Submit(std::move(job));
        cancelled.push_back(random() % 4 == 0);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3'000));
        if (cancelled.back()) scheduler->Cancel(id);
      }
      for (size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_EQ(recorders[i]->Wait().error, "");
        if (cancelled[i]) {
          ExpectBeginsAsAlone(*alone_, jobs[i], *recorders[i]);
        } else {
          ExpectSameAsAlone(*alone_, jobs[i], *recorders[i]);
        }
        texts.push_back(Joined(jobs[i].prompt, recorders[i]->ids()));
        if (texts.back().size() > 400) texts.pop_back();
      }
    }
    EXPECT_GT(scheduler->stats().cached_tokens, 0u);
  }
}

}  // namespace
}  // namespace deltafin
