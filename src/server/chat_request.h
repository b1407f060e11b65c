// POST /v1/chat/completions: the body, checked.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/answer_shape.h"
#include "server/chat_prompt.h"
#include "server/generation_fields.h"

namespace deltafin {

struct ChatCompletionRequest {
  GenerationFields generation;
  ChatPrompt prompt;
  bool thinking = true;
  int64_t max_new_tokens = 0;
  int64_t top_logprobs = -1;                  // as Job
  std::shared_ptr<const ShapeOptions> shape;  // null: any answer
  std::vector<std::string> ignored;           // fields that mean nothing here
  std::vector<std::string> notes;             // what was understood in another way, for people
};

// Throws ApiError.
ChatCompletionRequest ReadChatRequest(const std::string& body, const RequestLimits& limits);

// The prompt of `messages` and the fields that change it, for whoever wants to count tokens.
ChatPrompt ReadChatPrompt(const std::string& body, JsonFields* fields, const RequestLimits& limits);

}  // namespace deltafin
