// An HTTP request and the ways to answer it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deltafin {

struct HttpRequest {
  std::string method;
  std::string path;                                          // percent-decoded, without the query
  std::string query;                                         // as sent
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  // The first header of this name (in lower case); "" when there is none.
  std::string_view Header(std::string_view name) const;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type;
  std::string body;
  HttpHeaders headers;
};

// One request that waits for its answer: either Send, or BeginStream, Write... and EndStream.
// Everything happens on the server's I/O thread; Post and Send may be called on any thread.
// After the client has left all of them do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Runs `task` on the I/O thread, after what was posted before.
  virtual void Post(std::function<void()> task) = 0;
  virtual void Send(HttpResponse response) = 0;
  // The head goes out at once; `body` of the response is the beginning of the stream.
  virtual void BeginStream(HttpResponse head) = 0;
  virtual void Write(std::string_view bytes) = 0;
  virtual void EndStream() = 0;
  // Written and not taken by the client yet.
  virtual size_t unsent_bytes() const = 0;

  // Called when the client leaves before the answer is complete; at once if it has left already.
  virtual void OnClientLeft(std::function<void()> callback) = 0;
  // Called about every second until the answer is complete.
  virtual void OnTick(std::function<void()> callback) = 0;
};

// Runs on a worker thread. Must answer, now or later; what it throws is answered with 500.
using HttpHandler =
    std::function<void(std::shared_ptr<const HttpRequest>, std::shared_ptr<Exchange>)>;

// "%41" -> "A"; what is not such a code stays as it is.
std::string PercentDecode(std::string_view text);

}  // namespace deltafin
