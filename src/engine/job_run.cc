#include "engine/job_run.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/seconds_since.h"
#include "engine/engine_impl.h"
#include "engine/request_checks.h"
#include "io/hash.h"

namespace deltafin {
namespace {

constexpr double kReportSeconds = 0.2;

void Check(const Job& job, EngineImpl& engine) {
  const auto refuse = [](ErrorCode code, const std::string& why) { throw Error(code, why); };
  if (job.prompt.empty()) {
    refuse(ErrorCode::kInvalidArgument, "prompt: expected at least one token, got none");
  }
  CheckTokenIds(job.prompt, engine.info());
  CheckContextHolds(std::ssize(job.prompt), engine.info());
  for (int64_t length : job.shared_lengths) {
    if (length > 0 && length <= std::ssize(job.prompt)) continue;
    refuse(ErrorCode::kInvalidArgument,
           format("shared lengths: expected 1 to {}, got {}", job.prompt.size(), length));
  }
  if (!std::is_sorted(job.shared_lengths.begin(), job.shared_lengths.end())) {
    refuse(ErrorCode::kInvalidArgument, "shared lengths: expected them ascending");
  }
  if (job.max_new_tokens < 0) {
    refuse(ErrorCode::kInvalidArgument,
           format("new tokens: expected at least 0, got {}", job.max_new_tokens));
  }
  if (job.top_logprobs < -1) {
    refuse(ErrorCode::kInvalidArgument,
           format("logprobs: expected -1 (none) or more, got {}", job.top_logprobs));
  }
  CheckDraftTokens(job.draft_tokens, engine.info());
}

// Not max_new_tokens nor stops: they cut the answer, they do not choose it.
uint64_t AnswerKey(const SamplingOptions& o) {
  std::vector<uint64_t> parts;
  for (double value : {o.temperature, o.top_p, o.min_p, o.repetition_penalty, o.presence_penalty,
                       o.frequency_penalty}) {
    parts.push_back(std::bit_cast<uint64_t>(value));
  }
  parts.push_back(static_cast<uint64_t>(o.top_k));
  parts.push_back(o.temperature == 0 ? 0 : o.seed);
  for (const auto& [id, bias] : o.logit_bias) {
    parts.push_back(static_cast<uint64_t>(id));
    parts.push_back(std::bit_cast<uint64_t>(bias));
  }
  return std::max<uint64_t>(1, Xxh3(std::as_bytes(std::span(parts))));
}

}  // namespace

JobRun::JobRun(JobId id, Job job, EngineImpl& engine)
    : id_(id),
      job_(std::move(job)),
      engine_(engine),
      sampler_(job_.sampling, engine.info().vocab_size),
      text_(job_.prompt) {
  Check(job_, engine);
  // More would push out what others left.
  if (!job_.shared_lengths.empty()) {
    shared_lengths_ = {job_.shared_lengths.front()};
    if (job_.shared_lengths.back() > shared_lengths_[0]) {
      shared_lengths_.push_back(job_.shared_lengths.back());
    }
  }
  result_.prompt_tokens = std::ssize(job_.prompt);
}

// What a callback throws is its own job's failure and nobody else's.
void JobRun::Guarded(const std::function<void()>& callback) {
  if (ended_) return;
  try {
    callback();
  } catch (const std::exception& error) {
    Fail(error.what());
  } catch (...) {
    Fail("a callback threw something that is no exception");
  }
}

int64_t JobRun::pending() const { return std::ssize(text_) - std::ssize(timeline_->text.tokens); }

void JobRun::Start(Timeline& timeline) {
  timeline_ = &timeline;
  result_.queue_seconds = SecondsSince(since_);
  since_ = Clock::now();
  result_.cached_tokens = std::ssize(timeline.text.tokens);
  result_.cached_tokens = std::min(result_.cached_tokens, result_.prompt_tokens);
  DF_CHECK(pending() > 0 || !timeline.text.logits.empty());
  kept_tokens_ = std::ssize(timeline.text.tokens);
  if (job_.prompt_logprobs) {
    DF_CHECK(timeline.text.tokens.empty());
    prompt_tokens_.push_back({text_[0], std::nullopt});
  }
  if (pending() <= 0) PromptIsRead();
}

Run JobRun::NextRun(int64_t count, bool captures) {
  DF_CHECK(count > 0 && count <= pending());
  run_tokens_ = count;
  LogitsWanted wanted = count == pending() ? LogitsWanted::kLast : LogitsWanted::kNone;
  if (reads_prompt() && job_.prompt_logprobs) wanted = LogitsWanted::kAll;
  timeline_->text.logits.clear();
  const int64_t known = std::ssize(timeline_->text.tokens);
  captures_.clear();
  capture_list_.clear();
  for (int64_t length : shared_lengths_) {
    if (!captures || length <= known || length >= known + count) continue;
    captures_.push_back(std::make_unique<StateCapture>(engine_.config(), engine_.device(), length));
    capture_list_.push_back(captures_.back().get());
  }
  return {&timeline_->state, std::span(text_).subspan(static_cast<size_t>(known), count), wanted,
          nullptr, capture_list_};
}

void JobRun::TakeLogits(int64_t position, std::span<const float> logits) {
  const size_t next = timeline_->text.tokens.size() + static_cast<size_t>(position) + 1;
  if (next < text_.size()) {
    const int64_t top = std::max<int64_t>(0, job_.top_logprobs);
    prompt_tokens_.push_back({text_[next], LogprobsOf(logits, text_[next], top)});
  } else {
    timeline_->text.logits.assign(logits.begin(), logits.end());
  }
}

void JobRun::EndPass() {
  const auto from = text_.begin() + std::ssize(timeline_->text.tokens);
  timeline_->text.tokens.insert(timeline_->text.tokens.end(), from, from + run_tokens_);
  run_tokens_ = 0;
  if (reads_prompt()) {
    ReportPromptTokens();
    if (!ended_ && pending() == 0) PromptIsRead();
    return;
  }
  ChooseToken(timeline_->text.logits);
}

int64_t JobRun::EndDraftPass(std::span<const TokenId> draft,
                             std::vector<std::vector<float>>& logits) {
  int64_t kept = 0;
  bool goes_on = true;
  do {
    timeline_->text.tokens.push_back(text_.back());
    goes_on = ChooseToken(logits[kept]);
    ++kept;
  } while (goes_on && kept <= std::ssize(draft) && text_.back() == draft[kept - 1]);
  timeline_->text.logits.swap(logits[kept - 1]);
  return kept;
}

void JobRun::ReportPromptTokens() {
  if (!job_.on_prompt_token) return;
  Guarded([&] {
    for (const JobToken& token : prompt_tokens_) job_.on_prompt_token(token);
  });
  prompt_tokens_.clear();
}

void JobRun::PromptIsRead() {
  prompt_is_read_ = true;
  result_.prefill_seconds = SecondsSince(since_);
  since_ = Clock::now();
  if (job_.max_new_tokens == 0 || std::ssize(text_) >= engine_.info().context_tokens) {
    End(FinishReason::kLength);
    return;
  }
  // What an earlier job with the same choices left.
  for (size_t at = text_.size(); at < timeline_->text.tokens.size() && !ended_; ++at) {
    TakeToken({timeline_->text.tokens[at], std::nullopt});
  }
  if (!ended_) ChooseToken(timeline_->text.logits);
}

bool JobRun::ChooseToken(std::span<const float> logits) {
  Guarded([&] {
    JobToken token{sampler_.Choose(logits, text_, job_.prompt.size(), job_.allows), std::nullopt};
    if (job_.top_logprobs >= 0) token.logprobs = LogprobsOf(logits, token.id, job_.top_logprobs);
    TakeToken(token);
  });
  return !ended_;
}

void JobRun::TakeToken(const JobToken& token) {
  text_.push_back(token.id);
  ++result_.new_tokens;
  bool wanted = true;
  Guarded([&] { wanted = !job_.on_token || job_.on_token(token); });
  const std::vector<TokenId>& stops = engine_.stop_tokens();
  if (!wanted) {
    End(FinishReason::kCancelled);
  } else if (job_.stop_at_stop_tokens &&
             std::find(stops.begin(), stops.end(), token.id) != stops.end()) {
    End(FinishReason::kStop);
  } else if (result_.new_tokens >= job_.max_new_tokens ||
             std::ssize(text_) >= engine_.info().context_tokens) {
    End(FinishReason::kLength);
  }
}

// ---- which states are worth keeping ----

WantedText JobRun::wanted_text() const {
  // What was computed before has no log probabilities any more.
  const bool any = !job_.allows && job_.top_logprobs < 0;
  return {job_.prompt, any ? AnswerKey(job_.sampling) : 0};
}

int64_t JobRun::TokensToNextState() const {
  const int64_t known = std::ssize(timeline_->text.tokens);
  for (int64_t length : shared_lengths_) {
    if (length > known) return length - known;
  }
  return pending();
}

int64_t JobRun::StatesWithin(int64_t count) const {
  const int64_t known = std::ssize(timeline_->text.tokens);
  return std::count_if(shared_lengths_.begin(), shared_lengths_.end(),
                       [&](int64_t length) { return length > known && length < known + count; });
}

bool JobRun::WillShare(std::span<const TokenId> prompt) const {
  const int64_t known = std::ssize(timeline_->text.tokens);
  return std::any_of(shared_lengths_.begin(), shared_lengths_.end(), [&](int64_t length) {
    return length > known && length <= std::ssize(prompt) &&
           std::equal(text_.begin(), text_.begin() + length, prompt.begin());
  });
}

bool JobRun::StateIsDue(int64_t every_tokens) const {
  const int64_t known = std::ssize(timeline_->text.tokens);
  return IsShared(known) || (every_tokens > 0 && known - kept_tokens_ >= every_tokens);
}

bool JobRun::IsShared(int64_t length) const {
  return std::find(shared_lengths_.begin(), shared_lengths_.end(), length) != shared_lengths_.end();
}

void JobRun::LabelText() {
  KeptText& text = timeline_->text;
  text.first_generated = std::min<int64_t>(std::ssize(text.tokens), result_.prompt_tokens);
  const bool has_answer = std::ssize(text.tokens) > result_.prompt_tokens;
  text.answer_key = has_answer && !job_.allows ? AnswerKey(job_.sampling) : 0;
}

void JobRun::KeepCaptured(StateCache& cache) {
  for (const auto& capture : captures_) {
    KeptText text;
    text.tokens.assign(text_.begin(), text_.begin() + capture->num_tokens());
    text.first_generated = capture->num_tokens();
    cache.Keep(text, timeline_->state, capture.get());
  }
  captures_.clear();
}

void JobRun::KeepState(StateCache& cache) {
  LabelText();
  const int64_t known = std::ssize(timeline_->text.tokens);
  const StateCache::Id last = passing_state_;
  const StateCache::Id now = cache.Keep(timeline_->text, timeline_->state);
  passing_state_ = IsShared(known) || ended_ ? 0 : now;
  if (last != now) cache.Drop(last);
  kept_tokens_ = known;
}

void JobRun::End(FinishReason reason) {
  if (ended_) return;
  ended_ = true;
  const double seconds = SecondsSince(since_);
  (timeline_ == nullptr ? result_.queue_seconds
   : prompt_is_read_    ? result_.decode_seconds
                        : result_.prefill_seconds) = seconds;
  result_.finish_reason = reason;
  if (!job_.on_end) return;
  try {
    job_.on_end(result_);
  } catch (...) {  // there is nobody left to tell
  }
}

void JobRun::Fail(const std::string& why) {
  if (ended_) return;
  result_.error = why;
  End(FinishReason::kCancelled);
}

bool JobRun::ReportIsDue() {
  if (!job_.on_progress || ended_ || SecondsSince(reported_) < kReportSeconds) return false;
  reported_ = Clock::now();
  return true;
}

void JobRun::ReportQueued(int64_t jobs_before) {
  if (!ReportIsDue()) return;
  JobProgress progress;
  progress.jobs_before = jobs_before;
  progress.prompt_tokens = result_.prompt_tokens;
  progress.num_layers = engine_.info().num_layers;
  Guarded([&] { job_.on_progress(progress); });
}

void JobRun::ReportLayer(int64_t layer, int64_t run_tokens) {
  if (!ReportIsDue()) return;
  JobProgress progress;
  progress.phase = prompt_is_read_ ? JobProgress::Phase::kDecode : JobProgress::Phase::kPrefill;
  progress.prompt_tokens = result_.prompt_tokens;
  progress.cached_tokens = result_.cached_tokens;
  progress.done_tokens =
      std::min<int64_t>(result_.prompt_tokens, std::ssize(timeline_->text.tokens));
  progress.layer = layer;
  progress.num_layers = engine_.info().num_layers;
  if (!prompt_is_read_) progress.seconds_left = SecondsLeft(layer, run_tokens);
  Guarded([&] { job_.on_progress(progress); });
}

// As if every token and layer took the same time.
double JobRun::SecondsLeft(int64_t layer, int64_t run_tokens) const {
  const auto layers = static_cast<double>(engine_.info().num_layers);
  const double done =
      static_cast<double>(std::ssize(timeline_->text.tokens) - result_.cached_tokens) +
      static_cast<double>(run_tokens) * static_cast<double>(layer) / layers;
  const auto all = static_cast<double>(result_.prompt_tokens - result_.cached_tokens);
  return done > 0 ? SecondsSince(since_) * (all - done) / done : 0;
}

}  // namespace deltafin
