// What the endpoints work with, and the endpoints. They run on worker threads and answer the
// exchange, or throw ApiError.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "deltafin/engine.h"
#include "deltafin/scheduler.h"
#include "server/generation.h"
#include "server/generation_fields.h"
#include "server/http_message.h"

namespace deltafin {

struct Service {
  const Engine* engine = nullptr;
  RequestLimits limits;
  GenerationContext generation;
  std::string version;
  int64_t started = 0;       // seconds since 1970
  int64_t draft_tokens = 0;  // of every job
};

using Endpoint = void (*)(const Service&, const HttpRequest&, const std::shared_ptr<Exchange>&);

void HandleChat(const Service& service, const HttpRequest& request,
                const std::shared_ptr<Exchange>& exchange);
void HandleCompletion(const Service& service, const HttpRequest& request,
                      const std::shared_ptr<Exchange>& exchange);
void HandleResponses(const Service& service, const HttpRequest& request,
                     const std::shared_ptr<Exchange>& exchange);
void HandleModels(const Service& service, const HttpRequest& request,
                  const std::shared_ptr<Exchange>& exchange);
void HandleModel(const Service& service, const HttpRequest& request,
                 const std::shared_ptr<Exchange>& exchange);
void HandleTokenize(const Service& service, const HttpRequest& request,
                    const std::shared_ptr<Exchange>& exchange);
void HandleDetokenize(const Service& service, const HttpRequest& request,
                      const std::shared_ptr<Exchange>& exchange);
void HandlePage(const Service& service, const HttpRequest& request,
                const std::shared_ptr<Exchange>& exchange);

// Of an answer that begins now.
AnswerHeading NewHeading(const Service& service, const std::string& id);

// The headers and log lines that say which fields of a request meant nothing, and what was
// understood in another way.
HttpHeaders NoticeHeaders(const Service& service, const std::string& id,
                          const std::vector<std::string>& ignored,
                          const std::vector<std::string>& notes);

void SendJson(const Json& json, const HttpHeaders& headers,
              const std::shared_ptr<Exchange>& exchange);

}  // namespace deltafin
