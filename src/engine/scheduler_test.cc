#include "deltafin/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "deltafin/session.h"
#include "engine/scheduler_test_util.h"
#include "least_budget.h"

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SchedulerTest : public testing::Test {
 protected:
  static std::unique_ptr<Engine> OpenSmall(int parallel, int64_t context = 2'000) {
    EngineOptions options;
    options.model_dir = SmallModelDir();
    options.context_tokens = context;
    options.spine = SpineFormat::kBf16;
    options.parallel_sessions = parallel;
    options.max_draft_tokens = 4;
    return Engine::Open(options);
  }
  std::vector<TokenId> Ids(const char* text) {
    return engine_->tokenizer().Encode(text, Specials::kPlain);
  }
  std::unique_ptr<Scheduler> NewScheduler(int parallel, int max_queued = 32) {
    SchedulerOptions options;
    options.parallel = parallel;
    options.max_queued = max_queued;
    return Scheduler::Create(*engine_, options);
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

  std::unique_ptr<Engine> engine_ = OpenSmall(4);
};

// Jobs of all kinds that join at random times: each gives what a session alone gives.
TEST_F(SchedulerTest, EveryMixGivesTheBitsOfASessionAlone) {
  std::mt19937 random(11);
  const auto alone = OpenSmall(1);
  for (int round = 0; round < Rounds(6); ++round) {
    const auto scheduler = NewScheduler(1 + round % 4);
    std::vector<std::unique_ptr<Recorder>> recorders;
    std::vector<Job> jobs;
    for (int i = 0; i < 7; ++i) {
      jobs.push_back(RandomJob(random, engine_->info().vocab_size, 150));
      recorders.push_back(std::make_unique<Recorder>());
      Job job = jobs.back();
      recorders.back()->Attach(&job);
      ASSERT_TRUE(scheduler->Submit(std::move(job)));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 8'000));
    }
    for (size_t i = 0; i < jobs.size(); ++i) {
      const JobResult result = recorders[i]->Wait();
      EXPECT_EQ(result.error, "");
      ExpectSameAsAlone(*alone, jobs[i], *recorders[i]);
    }
    scheduler->Stop(100);  // the counters come after the callbacks
    EXPECT_EQ(scheduler->stats().finished_jobs, jobs.size());
    EXPECT_EQ(scheduler->stats().running, 0);
  }
}

// One leaves in the middle of a pass, at any layer: the others do not notice.
TEST_F(SchedulerTest, CancellingDisturbsNobody) {
  std::mt19937 random(5);
  const auto alone = OpenSmall(1);
  for (int round = 0; round < Rounds(12); ++round) {
    const auto scheduler = NewScheduler(4);
    std::vector<std::unique_ptr<Recorder>> recorders;
    std::vector<Job> jobs;
    std::vector<JobId> ids;
    for (int i = 0; i < 5; ++i) {
      jobs.push_back(RandomJob(random, engine_->info().vocab_size, 300));
      recorders.push_back(std::make_unique<Recorder>());
      Job job = jobs.back();
      recorders.back()->Attach(&job);
      ids.push_back(*scheduler->Submit(std::move(job)));
    }
    std::thread canceller([&] {
      for (size_t i : {1, 3, 4}) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 15'000));
        scheduler->Cancel(ids[i]);
      }
    });
    for (size_t i : {0, 2}) {
      EXPECT_EQ(recorders[i]->Wait().error, "");
      ExpectSameAsAlone(*alone, jobs[i], *recorders[i]);
    }
    canceller.join();
    for (size_t i : {1, 3, 4}) {
      if (recorders[i]->Wait().finish_reason != FinishReason::kCancelled) {
        ExpectSameAsAlone(*alone, jobs[i], *recorders[i]);
      } else {
        ExpectBeginsAsAlone(*alone, jobs[i], *recorders[i]);
      }
    }
  }
}

// The prompt of 500 tokens is a single pass here; progress tells the layer it is in.
TEST_F(SchedulerTest, APromptThatIsReadIsGivenUpWithinALayer) {
  const auto scheduler = NewScheduler(2);
  Recorder recorder;
  Job job;
  job.prompt = std::vector<TokenId>(500, 65);
  job.max_new_tokens = 5;
  recorder.Attach(&job);
  std::atomic<JobId> id = 0;
  std::atomic<int> reports = 0;
  std::thread canceller;
  const auto begun = [&](const JobProgress& progress) {
    if (progress.phase != JobProgress::Phase::kPrefill) return;
    EXPECT_EQ(progress.prompt_tokens, 500);
    EXPECT_EQ(progress.num_layers, engine_->info().num_layers);
    if (reports++ > 0) return;
    canceller = std::thread([&] {
      while (id == 0) std::this_thread::yield();
      scheduler->Cancel(id);
    });
    canceller.join();  // so that it is cancelled before the next layer
  };
  job.on_progress = begun;
  id = *scheduler->Submit(std::move(job));
  EXPECT_EQ(recorder.Wait().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(reports, 1);
  EXPECT_TRUE(recorder.tokens().empty());
  scheduler->Stop(10);
  EXPECT_EQ(scheduler->stats().prompt_tokens, 0u);
  EXPECT_EQ(scheduler->stats().cancelled_jobs, 1u);
}

TEST_F(SchedulerTest, ACancelledJobGivesItsPlaceInTheQueueBackAtOnce) {
  const auto scheduler = NewScheduler(1, 1);
  std::vector<std::unique_ptr<Recorder>> recorders;
  const auto submit = [&] {
    Job job;
    job.prompt = Ids("Once upon a time");
    job.max_new_tokens = LongAnswer();
    job.stop_at_stop_tokens = false;
    recorders.push_back(std::make_unique<Recorder>());
    recorders.back()->Attach(&job);
    return scheduler->Submit(std::move(job));
  };
  ASSERT_TRUE(submit());
  for (int i = 0; i < 20; ++i) {
    const std::optional<JobId> waiting = submit();
    ASSERT_TRUE(waiting) << i;
    scheduler->Cancel(*waiting);
  }
  scheduler->Stop(0);
}

TEST_F(SchedulerTest, TheQueueIsBoundedAndInOrder) {
  const auto scheduler = NewScheduler(1, 2);
  std::vector<std::unique_ptr<Recorder>> recorders;
  std::mutex mutex;
  std::vector<int> ended;
  const auto job = [&](int number) {
    Job made;
    made.prompt = Ids("Once upon a time");
    made.max_new_tokens = LongAnswer();
    made.stop_at_stop_tokens = false;
    recorders.push_back(std::make_unique<Recorder>());
    recorders.back()->Attach(&made);
    const auto on_end = made.on_end;
    made.on_end = [&, number, on_end](const JobResult& result) {
      {
        const std::lock_guard lock(mutex);
        ended.push_back(number);
      }
      on_end(result);
    };
    return made;
  };
  std::optional<JobId> last;
  for (int i = 0; i < 3; ++i) {
    last = scheduler->Submit(job(i));
    ASSERT_TRUE(last);
  }
  EXPECT_FALSE(scheduler->Submit(job(3)));
  scheduler->Cancel(*last);
  EXPECT_EQ(recorders[2]->Wait().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(recorders[1]->Wait().finish_reason, FinishReason::kLength);
  EXPECT_THAT(ended, ElementsAre(2, 0, 1));
  EXPECT_GT(recorders[1]->Wait().queue_seconds, 0);
  scheduler->Cancel(12345);  // nobody
}

TEST_F(SchedulerTest, StopEndsWhatTakesTooLong) {
  const auto scheduler = NewScheduler(1);
  Recorder running, queued;
  Job job;
  job.prompt = Ids("Once upon a time");
  job.max_new_tokens = LongAnswer();
  job.stop_at_stop_tokens = false;
  Job second = job;
  running.Attach(&job);
  queued.Attach(&second);
  ASSERT_TRUE(scheduler->Submit(std::move(job)));
  ASSERT_TRUE(scheduler->Submit(std::move(second)));
  running.WaitForTokens(3);
  scheduler->Stop(0.01);
  EXPECT_TRUE(running.has_ended());
  EXPECT_TRUE(queued.has_ended());
  EXPECT_EQ(queued.Wait().new_tokens, 0);
  Job late;
  late.prompt = {1};
  EXPECT_FALSE(scheduler->Submit(std::move(late)));
  scheduler->Stop(1);  // again does no harm
}

TEST_F(SchedulerTest, StopLetsEndWhatIsQuick) {
  const auto scheduler = NewScheduler(2);
  Recorder recorder;
  Job job;
  job.prompt = Ids("Once upon a time");
  job.max_new_tokens = 10;
  job.stop_at_stop_tokens = false;
  recorder.Attach(&job);
  ASSERT_TRUE(scheduler->Submit(std::move(job)));
  recorder.WaitForTokens(1);
  scheduler->Stop(1000);
  EXPECT_EQ(recorder.Wait().finish_reason, FinishReason::kLength);
}

TEST_F(SchedulerTest, TheDestructorCancels) {
  Recorder a, b;
  {
    const auto scheduler = NewScheduler(1);
    for (Recorder* recorder : {&a, &b}) {
      Job job;
      job.prompt = Ids("Once upon a time");
      job.max_new_tokens = LongAnswer();
      job.stop_at_stop_tokens = false;
      recorder->Attach(&job);
      ASSERT_TRUE(scheduler->Submit(std::move(job)));
    }
  }
  EXPECT_EQ(a.Wait().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(b.Wait().finish_reason, FinishReason::kCancelled);
}

TEST_F(SchedulerTest, WhatACallbackThrowsFailsItsJobAlone) {
  const auto alone = OpenSmall(1);
  const auto scheduler = NewScheduler(3);
  Recorder good, bad, blocked;
  Job job;
  job.prompt = Ids("Once upon a time");
  job.max_new_tokens = 30;
  const Job reference = job;
  Job throws = job;
  throws.stop_at_stop_tokens = false;
  Job refuses = job;
  good.Attach(&job);
  bad.Attach(&throws);
  blocked.Attach(&refuses);
  int count = 0;
  throws.on_token = [&](const JobToken&) {
    if (++count == 4) throw std::runtime_error("the client is gone");
    return true;
  };
  refuses.allows = [](TokenId) { return false; };
  ASSERT_TRUE(scheduler->Submit(std::move(throws)));
  ASSERT_TRUE(scheduler->Submit(std::move(refuses)));
  ASSERT_TRUE(scheduler->Submit(std::move(job)));
  EXPECT_EQ(bad.Wait().error, "the client is gone");
  EXPECT_EQ(bad.Wait().new_tokens, 4);
  EXPECT_THAT(blocked.Wait().error, HasSubstr("allows no token"));
  EXPECT_EQ(good.Wait().error, "");
  ExpectSameAsAlone(*alone, reference, good);
  scheduler->Stop(100);
  EXPECT_EQ(scheduler->stats().failed_jobs, 2u);
}

TEST_F(SchedulerTest, OnTokenMayEndAJob) {
  const auto scheduler = NewScheduler(1);
  Recorder recorder;
  Job job;
  job.prompt = Ids("Once upon a time");
  job.max_new_tokens = 100;
  recorder.Attach(&job);
  const auto on_token = job.on_token;
  job.on_token = [&](const JobToken& token) {
    on_token(token);
    return recorder.tokens().size() < 3;
  };
  ASSERT_TRUE(scheduler->Submit(std::move(job)));
  EXPECT_EQ(recorder.Wait().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(recorder.tokens().size(), 3u);
}

// The second best of every token that has an odd id.
TEST_F(SchedulerTest, AConstraintRulesWhatComes) {
  const auto scheduler = NewScheduler(2);
  for (double temperature : {0.0, 1.0}) {
    for (int64_t drafts : {0, 4}) {
      Recorder recorder;
      Job job;
      job.prompt = Ids("One two three one two three one two three one two");
      job.max_new_tokens = 40;
      job.stop_at_stop_tokens = false;
      job.sampling.temperature = temperature;
      job.draft_tokens = drafts;
      job.top_logprobs = engine_->info().vocab_size;
      job.allows = [](TokenId id) { return id % 2 == 0; };
      recorder.Attach(&job);
      ASSERT_TRUE(scheduler->Submit(std::move(job)));
      ASSERT_EQ(recorder.Wait().error, "");
      const std::vector<JobToken> tokens = recorder.tokens();
      ASSERT_EQ(tokens.size(), 40u);
      for (const JobToken& token : tokens) {
        EXPECT_EQ(token.id % 2, 0);
        if (temperature != 0) continue;
        const auto& top = token.logprobs->top;
        const auto even = std::find_if(top.begin(), top.end(),
                                       [](const TokenLogprob& p) { return p.id % 2 == 0; });
        ASSERT_NE(even, top.end());
        EXPECT_EQ(even->id, token.id);
      }
    }
  }
}

TEST_F(SchedulerTest, PromptTokensHaveLogprobsToo) {
  const auto scheduler = NewScheduler(2);
  const std::vector<TokenId> prompt = Ids("The capital of France is Paris, the capital of");
  Recorder recorder;
  Job job;
  job.prompt = prompt;
  job.prompt_logprobs = true;
  job.top_logprobs = 2;
  recorder.Attach(&job);
  ASSERT_TRUE(scheduler->Submit(std::move(job)));
  EXPECT_EQ(recorder.Wait().finish_reason, FinishReason::kLength);
  ASSERT_EQ(recorder.prompt_tokens().size(), prompt.size());
  EXPECT_TRUE(recorder.tokens().empty());
  EXPECT_FALSE(recorder.prompt_tokens()[0].logprobs);

  const auto alone = OpenSmall(1);
  size_t next = 1;
  alone->NewSession()->Append(
      prompt, 0,
      [&](int64_t, std::span<const float> logits) {
        if (next == prompt.size()) return;
        const JobToken token = recorder.prompt_tokens()[next];
        EXPECT_EQ(token.id, prompt[next]);
        ASSERT_TRUE(token.logprobs);
        EXPECT_EQ(token.logprobs->top.size(), 2u);
        EXPECT_EQ(token.logprobs->top[0].id,
                  std::max_element(logits.begin(), logits.end()) - logits.begin());
        ++next;
      },
      nullptr);
  EXPECT_EQ(next, prompt.size());
}

TEST_F(SchedulerTest, WhatCannotBeDoneIsRefused) {
  const auto scheduler = NewScheduler(1);
  const auto submit = [&](const std::function<void(Job*)>& change) {
    Job job;
    job.prompt = {1, 2};
    change(&job);
    return CodeOf([&] { (void)scheduler->Submit(std::move(job)); });
  };
  EXPECT_EQ(submit([](Job* job) { job->prompt.clear(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(submit([](Job* job) { job->prompt = {-1}; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(submit([](Job* job) { job->prompt.resize(2'001); }), ErrorCode::kOutOfMemory);
  EXPECT_EQ(submit([](Job* job) { job->sampling.top_p = 2; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(submit([](Job* job) { job->draft_tokens = 5; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(submit([](Job* job) { job->top_logprobs = -2; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf([&] { NewScheduler(5); }), ErrorCode::kInvalidArgument);
  EngineOptions options;
  options.model_dir = SmallModelDir();
  options.parallel_sessions = 0;
  EXPECT_EQ(CodeOf([&] { Engine::Open(options); }), ErrorCode::kInvalidArgument);
}

TEST_F(SchedulerTest, PicksOfTheLastPassAreThere) {
  const auto scheduler = NewScheduler(2);
  Recorder recorder;
  Job job;
  job.prompt = Ids("Once upon a time");
  job.max_new_tokens = 3;
  recorder.Attach(&job);
  ASSERT_TRUE(scheduler->Submit(std::move(job)));
  recorder.Wait();
  const std::vector<LayerPicks> picks = scheduler->last_picks();
  ASSERT_FALSE(picks.empty());
  for (size_t i = 0; i < picks.size(); ++i) {
    EXPECT_EQ(static_cast<int64_t>(picks[i].ids.size()), engine_->info().experts_per_token);
    if (i > 0) {
      EXPECT_GT(picks[i].layer, picks[i - 1].layer);
    }
  }
}

// A shard loses its end while the model runs, with no room for its experts in RAM.
TEST(SchedulerFaultTest, AFailedReadFailsTheJobsOfItsPassOnly) {
  namespace fs = std::filesystem;
  const TempDir folder;
  const fs::path dir = folder.path();
  for (const auto& entry : fs::directory_iterator(SmallModelDir())) {
    if (entry.is_regular_file()) fs::copy(entry.path(), dir / entry.path().filename());
  }
  EngineOptions options;
  options.model_dir = dir.string();
  options.context_tokens = 128;
  options.parallel_sessions = 2;
  options.ram_bytes = LeastRam(options);
  const auto engine = OpenAndFollow(options);
  SchedulerOptions two;
  two.parallel = 2;
  const auto scheduler = Scheduler::Create(*engine, two);
  const std::vector<TokenId> prompt =
      engine->tokenizer().Encode("Once upon a time", Specials::kPlain);
  const auto run = [&](Recorder& recorder, int64_t tokens) {
    Job job;
    job.prompt = prompt;
    job.max_new_tokens = tokens;
    job.stop_at_stop_tokens = false;
    recorder.Attach(&job);
    ASSERT_TRUE(scheduler->Submit(std::move(job)));
  };
  Recorder before, during, during_too, after;
  run(before, 8);
  ASSERT_EQ(before.Wait().error, "");
  std::vector<std::pair<fs::path, std::string>> shards;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    shards.emplace_back(entry.path(), std::string{std::istreambuf_iterator<char>(file), {}});
    fs::resize_file(entry.path(), shards.back().second.size() / 4);
  }
  ASSERT_FALSE(shards.empty());
  run(during, 100);
  run(during_too, 100);
  EXPECT_THAT(during.Wait().error, HasSubstr(".safetensors"));
  EXPECT_THAT(during_too.Wait().error, HasSubstr(".safetensors"));
  for (const auto& [path, bytes] : shards) {  // the same file: it is open
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << bytes;
  }
  run(after, 8);
  EXPECT_EQ(after.Wait().error, "");
  EXPECT_EQ(after.ids(), before.ids());
  EXPECT_EQ(scheduler->stats().failed_jobs, 2u);
}

}  // namespace
}  // namespace deltafin
