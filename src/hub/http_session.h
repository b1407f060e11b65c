// HTTP requests side by side over connections that are kept: libcurl's multi interface, in one
// thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deltafin/hub.h"
#include "hub/http_response.h"
#include "store/presence_map.h"

namespace deltafin {

struct HttpRequest {
  enum class Method : uint8_t { kGet, kHead };
  std::string url;
  Method method = Method::kGet;
  std::optional<ByteRange> range;
  std::string token;  // "": none
};

// How an exchange ended, apart from what the server said.
struct HttpEnd {
  bool complete = false;  // head and body came as announced
  bool transient = true;  // of what failed: it may work later
  std::string reason;     // of what failed, for people
};

// Hears of one exchange, in the session's thread.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // The head of the answer; false ends the exchange before its body is read.
  virtual bool OnHead(const HttpResponse& response) = 0;
  // A piece of the body; false ends the exchange.
  virtual bool OnBody(std::span<const std::byte> bytes) = 0;
  // The last call. It may start other exchanges.
  virtual void OnEnd(const HttpEnd& end) = 0;
};

// Everything but Wake in one thread. Redirects are not followed. HTTP/1.1 only: over HTTP/2 large
// ranges were 1.7 times slower. Proxies as libcurl finds them in the environment.
class HttpSession {
 public:
  explicit HttpSession(const HubOptions& options);
  // Exchanges that are under way just end: their handlers hear nothing.
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  size_t num_active() const { return exchanges_.size(); }
  // `handler` must live until it heard OnEnd, or Abort returned.
  void Start(const HttpRequest& request, HttpHandler* handler);
  // Ends an exchange without another call of its handler.
  void Abort(HttpHandler* handler);
  // Moves bytes and calls handlers, as far as that goes without waiting.
  void Perform();
  // Until something can be moved, Wake, or this time is over.
  void Wait(std::chrono::milliseconds timeout);
  // From any thread: Wait returns.
  void Wake() noexcept;

 private:
  struct Exchange;
  struct Multi;

  void Finish(size_t index, const HttpEnd& end);
  void EndStalled();

  const HubOptions options_;
  std::unique_ptr<Multi> multi_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<void*> idle_;  // easy handles
};

}  // namespace deltafin
