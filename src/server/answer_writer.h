// Puts the pieces of answers into the form of an endpoint. On the I/O thread.
#pragma once

#include <cstdint>
#include <string>

#include "deltafin/json.h"
#include "server/answer.h"
#include "server/api_error.h"

namespace deltafin {

// How one choice ended.
struct AnswerEnd {
  std::string finish_reason;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t new_tokens = 0;
  int64_t reasoning_tokens = 0;
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // For a stream: what each event adds to it, as server-sent events.
  virtual std::string BeginStream() = 0;
  virtual std::string Piece(size_t choice, const AnswerPiece& piece) = 0;
  virtual std::string End(size_t choice, const AnswerEnd& end) = 0;
  // After the end of every choice.
  virtual std::string EndStream() = 0;
  // In place of the rest of a stream.
  virtual std::string ErrorEvent(const ApiError& error);

  // Otherwise: takes everything, and gives the whole when every choice has ended.
  virtual void Collect(size_t choice, AnswerPiece piece) = 0;
  virtual void CollectEnd(size_t choice, const AnswerEnd& end) = 0;
  virtual Json Whole() = 0;
};

// "data: ...", one server-sent event.
std::string ServerSentEvent(const Json& json);

// What the answers of a request took together. Prompts that several choices share count once:
// `choices_per_prompt` of them follow one another.
class UsageSum {
 public:
  explicit UsageSum(size_t choices_per_prompt) : choices_per_prompt_(choices_per_prompt) {}
  void Add(size_t choice, const AnswerEnd& end);
  Json json() const;

 private:
  size_t choices_per_prompt_;
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t new_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
};

Json TimingsJson(const AnswerEnd& end);

// Unguessable, in the form PREFIX + 24 characters.
std::string RandomId(const std::string& prefix);

// What an answer says about itself.
struct AnswerHeading {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;
};
Json HeadingJson(const AnswerHeading& heading, const char* object);

}  // namespace deltafin
