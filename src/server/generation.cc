#include "server/generation.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/seconds_since.h"
#include "server/api_error.h"

namespace deltafin {
namespace {

using Clock = std::chrono::steady_clock;

// A comment goes out when nothing else did for so long.
constexpr double kWaitingSeconds = 0.9;  // while no token has come
constexpr double kDecodingSeconds = 2.0;

const char* PhaseName(JobProgress::Phase phase) {
  switch (phase) {
    case JobProgress::Phase::kQueued:
      return "queued";
    case JobProgress::Phase::kPrefill:
      return "prefill";
    case JobProgress::Phase::kDecode:
      return "decode";
  }
  return "";
}

std::string FinishReasonOf(const Answer& answer, FinishReason reason) {
  if (answer.is_enough()) return "stop";
  if (reason == FinishReason::kLength) return "length";
  return answer.has_calls() ? "tool_calls" : "stop";
}

}  // namespace

Json ProgressJson(const JobProgress& progress) {
  return {{"phase", PhaseName(progress.phase)},      {"jobs_before", progress.jobs_before},
          {"prompt_tokens", progress.prompt_tokens}, {"cached_tokens", progress.cached_tokens},
          {"done_tokens", progress.done_tokens},     {"layer", progress.layer},
          {"num_layers", progress.num_layers},       {"seconds_left", progress.seconds_left}};
}

// Lives as long as the scheduler has jobs of it, or the I/O thread tasks. All of it belongs to the
// I/O thread, but for the answers: each is the scheduler's from Submit to on_end.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(const GenerationContext& context, GenerationRequest request,
             std::shared_ptr<Exchange> exchange)
      : context_(context), request_(std::move(request)), exchange_(std::move(exchange)) {
    for (const GenerationChoice& choice : request_.choices) {
      Watched& watched = watched_.emplace_back();
      watched.progress.prompt_tokens = static_cast<int64_t>(choice.job.prompt.size());
    }
  }

  void Start() {
    context_.list->Add(this);
    listed_ = true;
    if (!SubmitAll()) return;
    exchange_->OnClientLeft([self = shared_from_this()] { self->ClientLeft(); });
    if (!request_.stream) {
      for (size_t i = 0; i < request_.choices.size(); ++i) {
        request_.writer->Collect(i, std::move(request_.choices[i].first_piece));
      }
      return;
    }
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = request_.headers;
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");  // nginx would hold it back
    head.body = Comment() + request_.writer->BeginStream();
    for (size_t i = 0; i < request_.choices.size(); ++i) {
      const AnswerPiece& piece = request_.choices[i].first_piece;
      if (!piece.empty()) head.body += request_.writer->Piece(i, piece);
    }
    stream_begun_ = true;
    exchange_->BeginStream(std::move(head));
    exchange_->OnTick([self = shared_from_this()] { self->Tick(); });
  }

  void AddJobs(std::vector<WatchedJob>* jobs) const {
    for (const Watched& watched : watched_) {
      if (watched.has_ended) continue;
      jobs->push_back({request_.id, watched.progress, watched.new_tokens, SecondsSince(began_)});
    }
  }

 private:
  struct Watched {
    JobId job = 0;
    JobProgress progress;
    int64_t new_tokens = 0;
    bool has_ended = false;
  };

  // ---- submitting ----

  bool SubmitAll() {
    for (size_t i = 0; i < request_.choices.size(); ++i) {
      Job job = std::move(request_.choices[i].job);
      SetCallbacks(i, &job);
      std::optional<ApiError> problem;
      std::optional<JobId> id;
      try {
        id = context_.scheduler->Submit(std::move(job));
      } catch (const Error& error) {
        const bool too_long = error.code() == ErrorCode::kOutOfMemory;
        problem.emplace(400, error.what(), "", too_long ? "context_length_exceeded" : "");
      }
      if (id) {
        watched_[i].job = *id;
        ++num_open_;
        continue;
      }
      if (!problem && context_.is_stopping()) problem.emplace(503, "the server is stopping");
      if (!problem) {
        problem.emplace(429, "too many requests are waiting; try again later (--queue)", "",
                        "queue_full");
      }
      Fail(*problem);
      return false;
    }
    return true;
  }

  // What the scheduler calls, on its thread: splits the tokens, and leaves the rest to the I/O
  // thread.
  void SetCallbacks(size_t i, Job* job) {
    const auto self = shared_from_this();
    Answer* const answer = request_.choices[i].answer.get();
    if (answer->constrained()) {
      job->allows = [self, answer](TokenId id) { return answer->Allows(id); };
    }
    if (job->prompt_logprobs) {
      job->on_prompt_token = [self, answer, i](const JobToken& token) {
        self->PostPiece(i, answer->PushPrompt(token), false);
      };
    }
    job->on_token = [self, answer, i](const JobToken& token) {
      self->PostPiece(i, answer->Push(token), true);
      return !answer->is_enough() && !self->is_over_.load(std::memory_order_relaxed);
    };
    job->on_progress = [self, i](const JobProgress& progress) {
      self->exchange_->Post([self, i, progress] { self->watched_[i].progress = progress; });
    };
    job->on_end = [self, answer, i](const JobResult& result) {
      self->PostPiece(i, answer->Finish(), false);
      AnswerEnd end;
      end.finish_reason = FinishReasonOf(*answer, result.finish_reason);
      end.prompt_tokens = result.prompt_tokens;
      end.cached_tokens = result.cached_tokens;
      end.new_tokens = result.new_tokens;
      end.reasoning_tokens = answer->reasoning_tokens();
      end.queue_seconds = result.queue_seconds;
      end.prefill_seconds = result.prefill_seconds;
      end.decode_seconds = result.decode_seconds;
      const bool is_whole = answer->is_enough() || result.finish_reason != FinishReason::kCancelled;
      self->exchange_->Post(
          [self, i, end, is_whole, error = result.error] { self->Ended(i, end, is_whole, error); });
    };
  }

  void PostPiece(size_t i, AnswerPiece piece, bool is_token) {
    if (!is_token && piece.empty()) return;
    exchange_->Post([self = shared_from_this(), i, is_token, piece = std::move(piece)]() mutable {
      self->Took(i, std::move(piece), is_token);
    });
  }

  // ---- on the I/O thread ----

  void Took(size_t i, AnswerPiece piece, bool is_token) {
    if (is_token) {
      ++watched_[i].new_tokens;
      watched_[i].progress.phase = JobProgress::Phase::kDecode;
    }
    if (is_over_ || piece.empty()) return;
    if (!request_.stream) return request_.writer->Collect(i, std::move(piece));
    Write(request_.writer->Piece(i, piece));
  }

  void Ended(size_t i, const AnswerEnd& end, bool is_whole, const std::string& error) {
    watched_[i].has_ended = true;
    --num_open_;
    watched_[i].progress.cached_tokens = end.cached_tokens;
    if (!is_over_) {
      if (!error.empty()) {
        context_.log(request_.id + " failed: " + error);
        Fail(ApiError(500, "the model could not compute this answer; the server's log says why"));
      } else if (!is_whole) {
        Fail(ApiError(503, "the server is stopping"));
      } else if (request_.stream) {
        Write(request_.writer->End(i, end));
      } else {
        request_.writer->CollectEnd(i, end);
      }
    }
    if (num_open_ == 0) Finish();
  }

  void Finish() {
    if (!is_over_) {
      is_over_ = true;
      if (request_.stream) {
        exchange_->Write(request_.writer->EndStream());
        exchange_->EndStream();
      } else {
        HttpResponse response{200, "application/json", DumpJson(request_.writer->Whole()) + "\n",
                              request_.headers};
        exchange_->Send(std::move(response));
      }
      Log("done");
    }
    Unlist();
  }

  // The client gets an error in place of (the rest of) the answer.
  void Fail(const ApiError& error) {
    if (is_over_.exchange(true)) return;
    if (stream_begun_) {
      exchange_->Write(request_.writer->ErrorEvent(error));
      exchange_->EndStream();
    } else {
      exchange_->Send(ErrorResponse(error));
    }
    Log(error.status() == 429 ? "refused: the queue is full" : "failed");
    CancelAll();
  }

  void ClientLeft() {
    if (is_over_.exchange(true)) return;
    Log("client left");
    CancelAll();
  }

  void CancelAll() {
    for (const Watched& watched : watched_) {
      if (watched.job != 0 && !watched.has_ended) context_.scheduler->Cancel(watched.job);
    }
    if (num_open_ == 0) Unlist();
  }

  void Unlist() {
    if (std::exchange(listed_, false)) context_.list->Remove(this);
  }

  void Write(const std::string& events) {
    if (events.empty()) return;
    exchange_->Write(events);
    last_written_ = Clock::now();
  }

  void Tick() {
    const bool is_decoding =
        std::all_of(watched_.begin(), watched_.end(), [](const Watched& watched) {
          return watched.has_ended || watched.progress.phase == JobProgress::Phase::kDecode;
        });
    if (SecondsSince(last_written_) > (is_decoding ? kDecodingSeconds : kWaitingSeconds)) {
      Write(Comment());
    }
  }

  // How far the job is that is furthest behind. Clients of OpenAI's interface skip comments.
  std::string Comment() const {
    const Watched* behind = nullptr;
    for (const Watched& watched : watched_) {
      if (watched.has_ended) continue;
      if (behind == nullptr || watched.progress.phase < behind->progress.phase) behind = &watched;
    }
    if (behind == nullptr) return {};
    return ": " + DumpJson(ProgressJson(behind->progress)) + "\n\n";
  }

  void Log(const char* what) const {
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t new_tokens = 0;
    for (const Watched& watched : watched_) {
      prompt_tokens += watched.progress.prompt_tokens;
      cached_tokens += watched.progress.cached_tokens;
      new_tokens += watched.new_tokens;
    }
    context_.log(format("{} {}: {} prompt tokens ({} cached), {} new tokens, {:.2f} s", request_.id,
                        what, prompt_tokens, cached_tokens, new_tokens, SecondsSince(began_)));
  }

  const GenerationContext context_;
  GenerationRequest request_;
  const std::shared_ptr<Exchange> exchange_;
  std::vector<Watched> watched_;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point last_written_ = Clock::now();
  size_t num_open_ = 0;  // jobs
  bool listed_ = false;
  bool stream_begun_ = false;
  // Nothing more goes to the client. Also read by the scheduler's thread, so that a job whose
  // client has left ends with its next token at the latest.
  std::atomic<bool> is_over_ = false;
};

std::vector<WatchedJob> GenerationList::jobs() const {
  std::vector<WatchedJob> jobs;
  for (const Generation* generation : running_) generation->AddJobs(&jobs);
  return jobs;
}

void StartGeneration(const GenerationContext& context, GenerationRequest request,
                     const std::shared_ptr<Exchange>& exchange) {
  const auto generation = std::make_shared<Generation>(context, std::move(request), exchange);
  exchange->Post([generation] { generation->Start(); });
}

}  // namespace deltafin
