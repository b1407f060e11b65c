// HTTP/1.1 over TCP: one I/O thread holds all connections, so an idle or a slow one costs a few
// kilobytes and no thread; requests are handled on a few workers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "server/http_message.h"

namespace deltafin {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address or a name; "" and "*": every address
  uint16_t port = 8000;            // 0: any free one
  int workers = 4;
  size_t max_connections = 2048;  // beyond: the longest idle one is closed for a new one
  size_t max_header_bytes = 32 << 10;
  uint64_t max_body_bytes = 16 << 20;
  double header_seconds = 15;         // from a request's first byte to the end of its head
  double body_seconds = 60;           // and one more for every 64 KiB
  double idle_seconds = 600;          // between two requests
  double stalled_seconds = 300;       // a client that takes nothing of what is written
  size_t max_unsent_bytes = 8 << 20;  // of a stream, then the client is too slow
};

struct HttpServerStats {
  size_t connections = 0;
  uint64_t accepted = 0;
  uint64_t refused = 0;               // no room, or closed for a new one
  uint64_t timed_out = 0;             // requests that did not arrive in time
  std::map<int, uint64_t> responses;  // by status
};

class HttpServer {
 public:
  struct Callbacks {
    HttpHandler handle;
    // Looks at a request before its body is read, on the I/O thread: a response refuses it.
    std::function<std::optional<HttpResponse>(const HttpRequest& head)> admit;
    // What to answer to a request that never becomes one (408, 413, 431, 400, 503).
    std::function<HttpResponse(int status, const std::string& message)> error;
  };

  // Listens; nothing is answered before Start. Throws Error(kIo) when it cannot.
  static std::unique_ptr<HttpServer> Create(const HttpServerOptions& options, Callbacks callbacks);
  // As Stop(0).
  virtual ~HttpServer() = default;

  virtual void Start() = 0;
  virtual uint16_t port() const = 0;
  virtual HttpServerStats stats() const = 0;          // thread-safe
  virtual void Post(std::function<void()> task) = 0;  // to the I/O thread
  // Calls `task` on the I/O thread every `seconds`, from now on.
  virtual void Every(double seconds, std::function<void()> task) = 0;
  // New connections are not taken, idle ones closed. Waits at most `seconds` until every answer
  // that was begun is with its client, then closes what is left.
  virtual void Stop(double seconds) = 0;
};

// Whether a host (an address or a name) can be reached from this machine only.
bool IsLoopback(const std::string& host);

}  // namespace deltafin
