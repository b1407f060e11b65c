#include "server/answer_writer.h"

#include <random>

namespace deltafin {

std::string ServerSentEvent(const Json& json) { return "data: " + DumpJson(json) + "\n\n"; }

std::string AnswerWriter::ErrorEvent(const ApiError& error) {
  return ServerSentEvent(ErrorJson(error));
}

void UsageSum::Add(size_t choice, const AnswerEnd& end) {
  if (choice % choices_per_prompt_ == 0) {
    prompt_tokens_ += end.prompt_tokens;
    cached_tokens_ += end.cached_tokens;
  }
  new_tokens_ += end.new_tokens;
  reasoning_tokens_ += end.reasoning_tokens;
}

Json UsageSum::json() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", new_tokens_},
          {"total_tokens", prompt_tokens_ + new_tokens_},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens_}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning_tokens_}}}};
}

Json TimingsJson(const AnswerEnd& end) {
  return {{"queue_seconds", end.queue_seconds},
          {"prefill_seconds", end.prefill_seconds},
          {"decode_seconds", end.decode_seconds}};
}

std::string RandomId(const std::string& prefix) {
  constexpr std::string_view kLetters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX";
  static thread_local std::random_device device;
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += kLetters[device() % kLetters.size()];
  return id;
}

Json HeadingJson(const AnswerHeading& heading, const char* object) {
  return {{"id", heading.id},
          {"object", object},
          {"created", heading.created},
          {"model", heading.model},
          {"system_fingerprint", heading.fingerprint}};
}

}  // namespace deltafin
