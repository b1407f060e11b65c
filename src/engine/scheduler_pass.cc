// The passes of the scheduler: who takes part, and what becomes of them.
#include <algorithm>
#include <utility>

#include "engine/ngram_source.h"
#include "engine/scheduler_impl.h"

namespace deltafin {

// A token each for the answers, and the rest of the room for prompts.
std::vector<SchedulerImpl::PassRun> SchedulerImpl::ChooseRuns() {
  std::vector<PassRun> pass;
  // Who was served longest ago comes first, should there be no room for all.
  std::rotate(running_.begin(), running_.begin() + 1, running_.end());
  int64_t logits_rows = engine_.max_logits_positions();
  int64_t positions = engine_.max_positions();
  for (const JobPtr& job : running_) {
    if (job->reads_prompt() || positions == 0 || logits_rows == 0) continue;
    pass.push_back({job.get(), 1});
    --positions;
    --logits_rows;
  }
  const int64_t wanted = policy_.PromptPositions(std::ssize(pass));
  AddPrompts(std::min(wanted, positions), logits_rows, pass);
  return pass;
}

// A capture becomes a kept state beside it: there is room for both, or it is not worth it.
bool SchedulerImpl::RoomForCaptures(int64_t count) {
  const uint64_t bytes = static_cast<uint64_t>(count) * StateCapture::Bytes(engine_.config());
  return 2 * bytes <= options_.snapshot_bytes && states_.ReserveRoom(bytes);
}

// Equal shares; what the short ones leave goes to the long ones.
void SchedulerImpl::AddPrompts(int64_t positions, int64_t logits_rows, std::vector<PassRun>& pass) {
  std::vector<JobRun*> readers;
  for (const JobPtr& job : running_) {
    if (job->reads_prompt()) readers.push_back(job.get());
  }
  std::stable_sort(readers.begin(), readers.end(),
                   [](JobRun* a, JobRun* b) { return a->pending() < b->pending(); });
  int64_t captures = 0;
  for (size_t i = 0; i < readers.size(); ++i) {
    const int64_t others = std::ssize(readers) - static_cast<int64_t>(i) - 1;
    int64_t share = (positions + others) / (others + 1);
    // A row of logits is kept for each that comes after.
    const int64_t rows = std::max<int64_t>(1, logits_rows - others);
    if (readers[i]->job().prompt_logprobs) share = std::min(share, rows);
    int64_t count = std::min(share, readers[i]->pending());
    // States inside the pass are captured; where there is no room for that, the pass ends there.
    const int64_t within = readers[i]->StatesWithin(count);
    const bool fits = states_.keeps_any() && RoomForCaptures(captures + within);
    if (fits) captures += within;
    if (states_.keeps_any() && !fits) count = std::min(count, readers[i]->TokensToNextState());
    if (count == 0 || logits_rows == 0) return;
    pass.push_back({readers[i], count, true, fits});
    positions -= count;
    logits_rows -= readers[i]->job().prompt_logprobs ? count : 1;
  }
}

void SchedulerImpl::RunPass() {
  if (running_.size() == 1 && RunDraftPass(*running_[0])) return;
  std::vector<PassRun> pass = ChooseRuns();
  std::vector<Run> runs;
  int64_t prompt_positions = 0;
  for (const PassRun& part : pass) {
    runs.push_back(part.job->NextRun(part.tokens, part.captures));
    if (part.reads_prompt) prompt_positions += part.tokens;
  }
  const int64_t answers = std::count_if(pass.begin(), pass.end(),
                                        [](const PassRun& part) { return !part.reads_prompt; });
  const auto sink = [&](size_t run, int64_t position, std::span<const float> logits) {
    pass[run].job->TakeLogits(position, logits);
  };
  const auto start = Clock::now();
  if (!Forward(runs, sink, pass)) return states_.ReleaseRoom();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  policy_.Record(answers, prompt_positions, seconds);
  if (speculation_ != nullptr && running_.size() == 1 && prompt_positions == 0) {
    speculation_->RecordPlain(seconds);
  }
  for (const PassRun& part : pass) {
    if (part.left) continue;
    const int64_t before = part.job->result().new_tokens;
    part.job->EndPass();
    CountNewTokens(part.job->result().new_tokens - before);
  }
  KeepStates(pass);
}

// Guesses are for a job that is alone: where there are others, their tokens fill the pass.
bool SchedulerImpl::RunDraftPass(JobRun& job) {
  const int64_t wanted = job.job().draft_tokens;
  if (job.reads_prompt() || wanted == 0 || engine_.info().max_draft_tokens == 0) return false;
  if (speculation_ == nullptr) {
    speculation_ = std::make_unique<Speculation>(engine_.config(), engine_.device(),
                                                 engine_.info().max_draft_tokens,
                                                 std::make_unique<NgramSource>());
  }
  if (drafting_for_ != job.id()) speculation_->Reset();
  drafting_for_ = job.id();
  const int64_t room = engine_.info().context_tokens - std::ssize(job.text());
  const int64_t remaining = job.job().max_new_tokens - job.result().new_tokens;
  // A pass yields one token more than it has guesses.
  const std::vector<TokenId> draft =
      speculation_->Propose(job.text(), wanted, std::min(room, remaining) - 1);
  if (draft.empty()) return false;

  std::vector<TokenId> tokens = {job.text().back()};
  tokens.insert(tokens.end(), draft.begin(), draft.end());
  std::vector<std::vector<float>>& logits = speculation_->logits();
  const Run run{&job.timeline()->state, tokens, LogitsWanted::kAll, &speculation_->rollback()};
  std::vector<PassRun> pass = {{&job, std::ssize(tokens)}};
  const auto sink = [&](size_t, int64_t position, std::span<const float> row) {
    logits[position].assign(row.begin(), row.end());
  };
  const auto start = Clock::now();
  if (!Forward({&run, 1}, sink, pass)) return true;
  const double forward_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const int64_t before = job.result().new_tokens;
  const int64_t kept = job.EndDraftPass(draft, logits);
  const auto undo_start = Clock::now();
  speculation_->rollback().Undo(job.timeline()->state, kept);
  const double undo_seconds = std::chrono::duration<double>(Clock::now() - undo_start).count();
  speculation_->RecordDraft(std::ssize(draft), kept - 1, forward_seconds + undo_seconds);
  CountNewTokens(job.result().new_tokens - before);
  KeepStates(pass);
  return true;
}

// False: it was broken off, and all its jobs have ended.
bool SchedulerImpl::Forward(std::span<const Run> runs, const LogitsSink& sink,
                            std::vector<PassRun>& pass) {
  ForwardHooks hooks;
  hooks.trace = picks_sink_.get();
  hooks.on_layer = [&](int64_t layer) { OnLayer(layer, pass); };
  hooks.leaves = [&](size_t run) { return Leaves(pass[run]); };
  hooks.on_run_failed = [&](size_t run, const Error& error) {
    pass[run].left = true;
    pass[run].job->timeline()->whole = false;
    pass[run].job->Fail(error.what());
  };
  try {
    engine_.model().Forward(runs, sink, hooks);
  } catch (const std::exception& error) {
    // Nobody knows how far each sequence got.
    for (PassRun& part : pass) {
      part.job->timeline()->whole = false;
      if (!part.left) part.job->Fail(error.what());
    }
    return false;
  }
  const std::lock_guard lock(mutex_);
  ++stats_.passes;
  for (const PassRun& part : pass) {
    if (part.reads_prompt && !part.left) stats_.prompt_tokens += static_cast<uint64_t>(part.tokens);
  }
  return true;
}

void SchedulerImpl::CountNewTokens(int64_t count) {
  const std::lock_guard lock(mutex_);
  stats_.new_tokens += static_cast<uint64_t>(count);
}

void SchedulerImpl::OnLayer(int64_t layer, const std::vector<PassRun>& pass) {
  stop_is_due_ = StopIsDue();
  const auto part_of = [&](const JobPtr& job) {
    return std::find_if(pass.begin(), pass.end(),
                        [&](const PassRun& part) { return part.job == job.get(); });
  };
  for (const JobPtr& job : running_) {
    const auto part = part_of(job);
    if (part == pass.end() && job->cancelled()) job->End(FinishReason::kCancelled);
    job->ReportLayer(layer, part == pass.end() ? 0 : part->tokens);
  }
  EndCancelledInQueue();
  ReportToQueue();
}

// Of a job that is to be stopped a pass over a prompt is broken off; a token is computed to its
// end, so that the answer is kept as far as it came.
bool SchedulerImpl::Leaves(PassRun& part) const {
  if (part.job->cancelled() || (stop_is_due_ && part.reads_prompt)) {
    part.job->End(FinishReason::kCancelled);
  }
  if (!part.job->ended() || !(part.reads_prompt || quits_)) return false;
  part.left = true;
  part.job->timeline()->whole = false;
  return true;
}

void SchedulerImpl::ReportToQueue() {
  std::vector<JobPtr> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.assign(queue_.begin(), queue_.end());
  }
  for (size_t i = 0; i < waiting.size(); ++i) {
    waiting[i]->ReportQueued(static_cast<int64_t>(i));
  }
}

}  // namespace deltafin
