#include "server/http_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/status.hpp>
#include <cctype>
#include <charconv>
#include <utility>

namespace deltafin {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// Of requests that were sent before the answer to an earlier one.
constexpr size_t kMaxAheadBytes = 64 << 10;
constexpr double kDrainSeconds = 2;

// Hands calls to the connection, on its thread.
class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, uint64_t serial)
      : connection_(std::move(connection)), serial_(serial) {}

  void Post(std::function<void()> task) override { asio::post(connection_->io(), std::move(task)); }
  void Send(HttpResponse response) override {
    asio::dispatch(connection_->io(), [connection = connection_, serial = serial_,
                                       response = std::move(response)]() mutable {
      connection->Send(serial, response);
    });
  }
  void BeginStream(HttpResponse head) override { connection_->BeginStream(serial_, head); }
  void Write(std::string_view bytes) override { connection_->Write(serial_, bytes); }
  void EndStream() override { connection_->EndStream(serial_); }
  size_t unsent_bytes() const override { return connection_->unsent_bytes(); }
  void OnClientLeft(std::function<void()> callback) override {
    connection_->OnClientLeft(serial_, std::move(callback));
  }
  void OnTick(std::function<void()> callback) override {
    connection_->OnTick(serial_, std::move(callback));
  }

 private:
  std::shared_ptr<Connection> connection_;
  uint64_t serial_;
};

// Notices within a minute or so that the other machine is gone without a word.
void KeepAlive(int socket) {
  const auto set = [&](int level, int name, int value) {
    // Where it cannot be set, only the notice is lost.
    (void)setsockopt(socket, level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(TCP_KEEPIDLE)
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
#else
  set(IPPROTO_TCP, TCP_KEEPALIVE, 30);  // macOS's name
#endif
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

std::string Lower(boost::beast::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

template <typename Message>
HttpRequest HeadOf(const Message& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t question = target.find('?');
  request.path = PercentDecode(std::string_view(target).substr(0, question));
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(Lower(field.name_string()), std::string(field.value()));
  }
  return request;
}

bool Elapsed(Connection::Clock::time_point since, Connection::Clock::time_point now,
             double seconds) {
  return std::chrono::duration<double>(now - since).count() > seconds;
}

// A header must stay on its line, whatever it was made of.
std::string OneLine(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return line;
}

std::string Hex(size_t value) {
  char digits[2 * sizeof value];
  return {digits, std::to_chars(digits, digits + sizeof digits, value, 16).ptr};
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, ConnectionOwner* owner)
    : io_(owner->io()),
      socket_(std::move(socket)),
      owner_(owner),
      buffer_(kMaxAheadBytes + owner->options().max_header_bytes + 2 * chunk_.size()) {
  KeepAlive(socket_.native_handle());
  BeginRequest();
}

void Connection::Start() { Read(); }

void Connection::Refuse(const std::string& message) {
  FailRequest(503, message);
  Read();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  const bool was_handling = state_ == State::kHandling;
  state_ = State::kClosed;
  boost::system::error_code ignored;
  socket_.close(ignored);
  const std::function<void()> left = std::exchange(on_client_left_, nullptr);
  on_tick_ = nullptr;
  if (was_handling && left) left();
  owner_->Forget(this);
}

void Connection::Tick(Clock::time_point now) {
  const HttpServerOptions& options = owner_->options();
  switch (state_) {
    case State::kReading:
      if (!has_begun_) {
        if (Elapsed(last_activity_, now, options.idle_seconds)) Close();
      } else if (Elapsed(request_began_, now, SecondsForRequest())) {
        owner_->CountTimeout();
        FailRequest(408, "the request did not arrive in time");
      }
      return;
    case State::kHandling:
      // A copy: the tick may end the answer, which drops the callback.
      if (const std::function<void()> tick = on_tick_) tick();
      [[fallthrough]];
    case State::kFlushing:
      if (!in_flight_.empty() && Elapsed(last_written_, now, options.stalled_seconds)) Close();
      return;
    case State::kDraining:
      if (Elapsed(last_written_, now, kDrainSeconds)) Close();
      return;
    case State::kClosed:
      return;
  }
}

double Connection::SecondsForRequest() const {
  const HttpServerOptions& options = owner_->options();
  if (!parser_->is_header_done()) return options.header_seconds;
  const auto body_bytes = static_cast<double>(parser_->content_length().value_or(0));
  return options.header_seconds + options.body_seconds + body_bytes / (64 << 10);
}

// ---- reading ----

void Connection::BeginRequest() {
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(owner_->options().max_header_bytes));
  parser_->body_limit(owner_->options().max_body_bytes);
  has_begun_ = false;
  head_is_checked_ = false;
}

void Connection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ != State::kReading && buffer_.size() >= kMaxAheadBytes) return;
  reading_ = true;
  // Never into the buffer itself, which the parser may empty in the meantime.
  socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](
                                                    boost::system::error_code error, size_t bytes) {
    self->OnRead(error, bytes);
  });
}

// Reads all the time, also while a request is handled: the end of the stream is how a client that
// left is noticed.
void Connection::OnRead(boost::system::error_code error, size_t bytes) {
  reading_ = false;
  if (error == asio::error::eof && state_ == State::kFlushing) {
    keep_alive_ = false;  // it has said all; the rest of the answer is on its way
    return;
  }
  if (error) return Close();
  last_activity_ = Clock::now();
  if (state_ != State::kDraining) {
    buffer_.commit(asio::buffer_copy(buffer_.prepare(bytes), asio::buffer(chunk_, bytes)));
  }
  if (state_ == State::kReading) Feed();
  Read();
}

void Connection::Feed() {
  while (state_ == State::kReading && buffer_.size() > 0) {
    if (!has_begun_) {
      has_begun_ = true;
      request_began_ = Clock::now();
    }
    boost::system::error_code error;
    const size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error && error != http::error::need_more) {
      if (error == http::error::body_limit) {
        return FailRequest(413, "the request body is longer than " +
                                    std::to_string(owner_->options().max_body_bytes) +
                                    " bytes (--max-body)");
      }
      if (error == http::error::header_limit) {
        return FailRequest(431, "the request's headers are too long");
      }
      return FailRequest(400, "this is not an HTTP/1.1 request: " + error.message());
    }
    if (parser_->is_header_done() && !CheckHead()) return;
    if (parser_->is_done()) return Dispatch();
    if (error || used == 0) return;  // more must come
  }
}

// Whether the body is welcome.
bool Connection::CheckHead() {
  if (std::exchange(head_is_checked_, true)) return true;
  const auto& message = parser_->get();
  is_http_1_0_ = message.version() < 11;
  head_only_ = message.method() == http::verb::head;
  if (owner_->stopping()) {
    FailRequest(503, "the server is stopping");
    return false;
  }
  const HttpRequest head = HeadOf(message);
  if (owner_->callbacks().admit) {
    if (std::optional<HttpResponse> refusal = owner_->callbacks().admit(head)) {
      // A body that is not read would be taken for the next request.
      keep_alive_ = parser_->is_done() && message.keep_alive();
      ++serial_;
      state_ = State::kHandling;
      Send(serial_, *refusal);
      return false;
    }
  }
  if (!parser_->is_done() && boost::beast::iequals(head.Header("expect"), "100-continue")) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    Flush();
  }
  return true;
}

void Connection::Dispatch() {
  auto message = parser_->release();
  auto request = std::make_shared<HttpRequest>(HeadOf(message));
  request->body = std::move(message.body());
  keep_alive_ = message.keep_alive();
  ++serial_;
  state_ = State::kHandling;
  owner_->Handle(std::move(request),
                 std::make_shared<ConnectionExchange>(shared_from_this(), serial_));
}

// For what is no request yet: answers and closes.
void Connection::FailRequest(int status, const std::string& message) {
  keep_alive_ = false;
  ++serial_;
  state_ = State::kHandling;
  Send(serial_, owner_->callbacks().error(status, message));
}

// ---- writing ----

void Connection::WriteHead(const HttpResponse& response, bool is_stream) {
  const auto header = [&](std::string_view name, std::string_view value) {
    out_.append(name).append(": ").append(OneLine(value)).append("\r\n");
  };
  owner_->CountResponse(response.status);
  const boost::beast::string_view reason =
      http::obsolete_reason(static_cast<http::status>(response.status));
  out_ += "HTTP/1.1 " + std::to_string(response.status) + " ";
  out_.append(reason.data(), reason.size()).append("\r\n");
  if (!response.content_type.empty()) header("Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) header(name, value);
  is_chunked_ = is_stream && !is_http_1_0_;
  if (is_chunked_) {
    header("Transfer-Encoding", "chunked");
  } else if (is_stream) {
    keep_alive_ = false;  // the end of the connection is the end of the answer
  } else if (response.status != 204 && response.status != 304) {
    header("Content-Length", std::to_string(response.body.size()));
  }
  header("Connection", keep_alive_ ? "keep-alive" : "close");
  out_ += "\r\n";
}

void Connection::Send(uint64_t serial, const HttpResponse& response) {
  if (!IsCurrent(serial) || stream_begun_) return;
  if (owner_->stopping()) keep_alive_ = false;
  WriteHead(response, false);
  if (!head_only_) out_ += response.body;
  EndResponse();
}

void Connection::BeginStream(uint64_t serial, const HttpResponse& head) {
  if (!IsCurrent(serial) || stream_begun_) return;
  WriteHead(head, true);
  if (head_only_) return EndResponse();
  stream_begun_ = true;
  if (!head.body.empty()) return Write(serial, head.body);
  Flush();
}

void Connection::Write(uint64_t serial, std::string_view bytes) {
  if (!IsCurrent(serial) || bytes.empty()) return;
  if (unsent_bytes() + bytes.size() > owner_->options().max_unsent_bytes) return Close();
  if (is_chunked_) out_ += Hex(bytes.size()) + "\r\n";
  out_ += bytes;
  if (is_chunked_) out_ += "\r\n";
  Flush();
}

void Connection::EndStream(uint64_t serial) {
  if (!IsCurrent(serial)) return;
  if (is_chunked_) out_ += "0\r\n\r\n";
  EndResponse();
}

void Connection::OnClientLeft(uint64_t serial, std::function<void()> callback) {
  if (IsCurrent(serial)) {
    on_client_left_ = std::move(callback);
  } else {
    callback();
  }
}

void Connection::OnTick(uint64_t serial, std::function<void()> callback) {
  if (IsCurrent(serial)) on_tick_ = std::move(callback);
}

void Connection::Flush() {
  if (!in_flight_.empty() || out_.empty() || state_ == State::kClosed) return;
  in_flight_ = std::exchange(out_, {});
  last_written_ = Clock::now();
  asio::async_write(socket_, asio::buffer(in_flight_),
                    [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
                      self->OnWritten(error, bytes);
                    });
}

void Connection::OnWritten(boost::system::error_code error, size_t) {
  in_flight_.clear();
  last_written_ = Clock::now();
  if (error) return Close();
  if (!out_.empty()) return Flush();
  if (state_ == State::kFlushing) NextRequest();
}

void Connection::EndResponse() {
  state_ = State::kFlushing;
  stream_begun_ = false;
  is_chunked_ = false;
  on_client_left_ = nullptr;
  on_tick_ = nullptr;
  // Never from here: a callback of the exchange may be running that the next request replaces.
  if (out_.empty() && in_flight_.empty()) {
    asio::post(io(), [self = shared_from_this()] { self->OnWritten({}, 0); });
  } else {
    Flush();
  }
}

void Connection::NextRequest() {
  last_activity_ = Clock::now();
  if (!keep_alive_ || owner_->stopping()) return Drain();
  state_ = State::kReading;
  BeginRequest();
  Feed();
  Read();
}

// A connection that is closed with bytes unread is reset, which may destroy the answer on its way.
void Connection::Drain() {
  state_ = State::kDraining;
  buffer_.clear();
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  Read();
}

}  // namespace deltafin
