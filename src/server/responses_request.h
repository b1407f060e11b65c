// POST /v1/responses: the part of it that is a chat in other words (docs/server.md says what is
// refused).
#pragma once

#include <string>
#include <vector>

#include "deltafin/json.h"
#include "server/chat_request.h"

namespace deltafin {

struct ResponsesRequest {
  ChatCompletionRequest chat;  // n is 1; `ignored` and `notes` name this request's fields
  // What every answer repeats of its request: instructions, tools, temperature ...
  Json settings = Json::object();
};

// Throws ApiError, which names the field as this request spells it.
ResponsesRequest ReadResponsesRequest(const std::string& body, const RequestLimits& limits);

}  // namespace deltafin
