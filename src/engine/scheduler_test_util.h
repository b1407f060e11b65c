// What the tests of the scheduler share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "deltafin/scheduler.h"
#include "deltafin/session.h"
#include "small_model.h"
#include "test_rounds.h"

namespace deltafin {

// Tokens of an answer that is still under way when a test does something to it.
inline int64_t LongAnswer() { return Rounds(1'500); }

// Keeps what a job hands out. Must outlive it.
class Recorder {
 public:
  void Attach(Job* job) {
    job->on_prompt_token = [this](const JobToken& token) {
      const std::lock_guard lock(mutex_);
      prompt_tokens_.push_back(token);
    };
    job->on_token = [this](const JobToken& token) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(ended_);
      tokens_.push_back(token);
      changed_.notify_all();
      return true;
    };
    job->on_end = [this](const JobResult& result) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(ended_);
      ended_ = true;
      result_ = result;
      changed_.notify_all();
    };
  }

  JobResult Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    return result_;
  }
  void WaitForTokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || tokens_.size() >= count; });
  }
  bool has_ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  std::vector<JobToken> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  std::vector<JobToken> prompt_tokens() {
    const std::lock_guard lock(mutex_);
    return prompt_tokens_;
  }
  std::vector<TokenId> ids() {
    std::vector<TokenId> ids;
    for (const JobToken& token : tokens()) ids.push_back(token.id);
    return ids;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::vector<JobToken> tokens_;
  std::vector<JobToken> prompt_tokens_;
  JobResult result_;
};

inline std::vector<TokenId> RandomTokens(std::mt19937& random, int64_t vocab_size, size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocab_size);
  return tokens;
}

// A prompt of up to `most_tokens` and options of all kinds.
inline Job RandomJob(std::mt19937& random, int64_t vocab_size, size_t most_tokens) {
  Job job;
  const auto coin = [&] { return random() % 2 == 0; };
  job.prompt = RandomTokens(random, vocab_size, 1 + random() % (coin() ? 8 : most_tokens));
  if (coin()) {  // text that repeats, for guesses
    const std::vector<TokenId> once = job.prompt;
    while (job.prompt.size() + once.size() <= most_tokens && job.prompt.size() < 3 * once.size()) {
      job.prompt.insert(job.prompt.end(), once.begin(), once.end());
    }
  }
  job.max_new_tokens = static_cast<int64_t>(random() % 40);
  job.stop_at_stop_tokens = coin();
  job.top_logprobs = coin() ? 2 : -1;
  job.draft_tokens = coin() ? static_cast<int64_t>(random() % 5) : kAutoDraft;
  if (coin()) {
    job.sampling.temperature = 0.9;
    job.sampling.seed = random();
    if (coin()) job.sampling.top_p = 0.9;
    if (coin()) job.sampling.frequency_penalty = 0.3;
    if (coin()) job.sampling.repetition_penalty = 1.1;
  }
  return job;
}

inline GenerateResult GenerateAlone(Engine& engine, const Job& job) {
  GenerateOptions options;
  options.max_new_tokens = job.max_new_tokens;
  options.stop_at_stop_tokens = job.stop_at_stop_tokens;
  options.sampling = job.sampling;
  options.top_logprobs = std::max<int64_t>(0, job.top_logprobs);
  return engine.NewSession()->Generate(job.prompt, options);
}

// What came is the beginning of what a session alone gives, which is returned.
inline GenerateResult ExpectBeginsAsAlone(Engine& engine, const Job& job, Recorder& recorder) {
  GenerateResult alone = GenerateAlone(engine, job);
  const std::vector<JobToken> tokens = recorder.tokens();
  EXPECT_LE(tokens.size(), alone.tokens.size());
  for (size_t i = 0; i < std::min(tokens.size(), alone.tokens.size()); ++i) {
    EXPECT_EQ(tokens[i].id, alone.tokens[i]) << "token " << i;
    if (job.top_logprobs <= 0 || !tokens[i].logprobs) continue;
    // Equal bits of every logit that these come from.
    EXPECT_EQ(tokens[i].logprobs->chosen, alone.logprobs[i].chosen);
    EXPECT_EQ(tokens[i].logprobs->top[1].logprob, alone.logprobs[i].top[1].logprob);
  }
  return alone;
}

inline void ExpectSameAsAlone(Engine& engine, const Job& job, Recorder& recorder) {
  const GenerateResult alone = ExpectBeginsAsAlone(engine, job, recorder);
  EXPECT_EQ(recorder.ids(), alone.tokens);
  EXPECT_EQ(recorder.Wait().finish_reason, alone.finish_reason);
  EXPECT_EQ(recorder.Wait().new_tokens, std::ssize(alone.tokens));
  for (const JobToken& token : recorder.tokens()) {
    EXPECT_EQ(token.logprobs.has_value(), job.top_logprobs >= 0);
  }
}

}  // namespace deltafin
