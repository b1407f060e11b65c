// One request that generates: its jobs in the scheduler, their answers on the way to the client.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "deltafin/scheduler.h"
#include "server/answer.h"
#include "server/answer_writer.h"
#include "server/http_message.h"

namespace deltafin {

// A job as those who watch see it.
struct WatchedJob {
  std::string id;  // of the request
  JobProgress progress;
  int64_t new_tokens = 0;
  double seconds = 0;  // since the request came
};

Json ProgressJson(const JobProgress& progress);

class Generation;

// The generations that are going on. I/O thread.
class GenerationList {
 public:
  std::vector<WatchedJob> jobs() const;
  void Add(const Generation* generation) { running_.insert(generation); }
  void Remove(const Generation* generation) { running_.erase(generation); }

 private:
  std::set<const Generation*> running_;
};

struct GenerationChoice {
  Job job;  // without callbacks
  std::unique_ptr<Answer> answer;
  AnswerPiece first_piece;  // that is known before any token
};

struct GenerationRequest {
  std::string id;
  std::vector<GenerationChoice> choices;
  std::unique_ptr<AnswerWriter> writer;
  bool stream = false;
  HttpHeaders headers;
};

struct GenerationContext {
  Scheduler* scheduler = nullptr;
  GenerationList* list = nullptr;
  std::function<bool()> is_stopping;
  std::function<void(const std::string&)> log;  // thread-safe
};

// Answers the exchange, now (when the queue is full, or the request is impossible) or as the tokens
// come. On any thread.
void StartGeneration(const GenerationContext& context, GenerationRequest request,
                     const std::shared_ptr<Exchange>& exchange);

}  // namespace deltafin
