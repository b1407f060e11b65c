// The OpenAI-compatible server (docs/server.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "deltafin/engine.h"
#include "deltafin/scheduler.h"
#include "server/http_server.h"

namespace deltafin {

struct ServerOptions {
  HttpServerOptions http;
  std::string api_key;                   // "": none is needed
  bool insecure = false;                 // without a key, reachable from elsewhere
  std::vector<std::string> origins;      // web pages of these may use the server; "*": of any
  std::vector<std::string> model_names;  // at least one; the first is what answers say
  int64_t max_new_tokens = 0;            // ceiling; 0: none
  int64_t draft_tokens = 0;              // as Job
  std::string version;
  SchedulerOptions scheduler;                   // that the scheduler was made with
  std::function<void(const std::string&)> log;  // a line for people; called by several threads
};

class Server {
 public:
  // Listens. Engine and scheduler must outlive it. Throws Error(kInvalidArgument) for an address
  // that others can reach without a key, Error(kIo) when it cannot listen.
  static std::unique_ptr<Server> Start(Engine& engine, Scheduler& scheduler,
                                       const ServerOptions& options);
  // As Stop(0).
  virtual ~Server() = default;

  virtual uint16_t port() const = 0;
  // Refuses new requests, lets running ones go on for so many seconds, then ends them with an
  // error; the scheduler keeps their states.
  virtual void Stop(double seconds) = 0;
};

}  // namespace deltafin
