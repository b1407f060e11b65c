// Any bytes on a connection to the HTTP server, in pieces: every answer is whole, a stream's too,
// and the server goes on with the next connection. The first byte says where the bytes are cut.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include "server/http_server.h"

namespace deltafin {
namespace {

void Require(bool good) {
  if (!good) std::abort();
}

// Streams what came, one byte an event, where the path asks for it; else sends it back, behind a
// byte with which no head begins.
void Handle(const std::shared_ptr<const HttpRequest>& request,
            const std::shared_ptr<Exchange>& exchange) {
  if (!request->path.ends_with("/stream")) {
    return exchange->Send({200, "text/plain", "=" + request->body, {{"X-Path", request->path}}});
  }
  exchange->Post([request, exchange] {
    exchange->OnClientLeft([] {});
    exchange->BeginStream({200, "text/event-stream", ": begin\n\n", {}});
    for (const char c : request->body) exchange->Write(std::string("data: ") + c + "\n\n");
    exchange->EndStream();
  });
}

class FuzzedServer {
 public:
  FuzzedServer() {
    HttpServerOptions options;
    options.port = 0;
    options.workers = 1;
    options.max_header_bytes = 4 << 10;
    options.max_body_bytes = 16 << 10;
    HttpServer::Callbacks callbacks;
    callbacks.handle = Handle;
    callbacks.admit = [](const HttpRequest& head) -> std::optional<HttpResponse> {
      if (head.path != "/refused") return std::nullopt;
      return HttpResponse{401, "text/plain", "no", {}};
    };
    callbacks.error = [](int status, const std::string& message) {
      return HttpResponse{status, "text/plain", message, {}};
    };
    server_ = HttpServer::Create(options, std::move(callbacks));
    server_->Start();
  }

  // All that the server answers until it closes. When it says nothing more the client hangs up.
  std::string Talk(std::string_view bytes, size_t piece_bytes, bool* hung_up) const {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Require(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    while (!bytes.empty()) {
      const ssize_t sent =
          send(socket, bytes.data(), std::min(piece_bytes, bytes.size()), MSG_NOSIGNAL);
      if (sent <= 0) break;  // it has heard enough
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    std::string answer;
    char buffer[4096];
    while (true) {
      pollfd ready{socket, POLLIN, 0};
      if (poll(&ready, 1, *hung_up ? 10'000 : 2) == 0) {
        Require(!*hung_up);
        *hung_up = true;
        shutdown(socket, SHUT_WR);
        continue;
      }
      const ssize_t count = recv(socket, buffer, sizeof buffer, 0);
      if (count <= 0) break;
      answer.append(buffer, static_cast<size_t>(count));
    }
    close(socket);
    return answer;
  }

 private:
  std::unique_ptr<HttpServer> server_;
};

size_t NumberAt(std::string_view text, int base) {
  size_t number = 0;
  Require(std::from_chars(text.data(), text.data() + text.size(), number, base).ec == std::errc());
  return number;
}

// Takes one answer off the begin of `rest`; false when it is none, or not whole.
bool TakeAnswer(std::string_view* rest) {
  const size_t head_bytes = rest->find("\r\n\r\n");
  if (!rest->starts_with("HTTP/1.1 ") || head_bytes == std::string_view::npos) return false;
  const std::string head(rest->substr(0, head_bytes));
  rest->remove_prefix(head_bytes + 4);
  // An answer to HEAD says what would have come.
  if (rest->empty() || rest->starts_with("HTTP/1.1 ")) return true;
  if (const size_t at = head.find("\r\nContent-Length: "); at != std::string::npos) {
    const size_t length = NumberAt(head.substr(at + 18), 10);
    if (length > rest->size()) return false;
    rest->remove_prefix(length);
    return true;
  }
  if (head.find("\r\nTransfer-Encoding: chunked") == std::string::npos) {
    *rest = {};  // up to the end of the connection
    return true;
  }
  while (true) {
    const size_t line = rest->find("\r\n");
    if (line == std::string_view::npos) return false;
    const size_t bytes = NumberAt(rest->substr(0, line), 16);
    rest->remove_prefix(line + 2);
    if (rest->size() < 2 || rest->size() - 2 < bytes) return false;
    rest->remove_prefix(bytes + 2);
    if (bytes == 0) return true;
  }
}

}  // namespace
}  // namespace deltafin

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const deltafin::FuzzedServer server;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  bool hung_up = false;
  const std::string answer = server.Talk(bytes, data[0] == 0 ? size : data[0], &hung_up);
  // What was on its way when the client hung up may end anywhere.
  for (std::string_view rest = answer; !rest.empty();) {
    if (deltafin::TakeAnswer(&rest)) continue;
    if (!hung_up) std::abort();
    break;
  }
  return 0;
}
