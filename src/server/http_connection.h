// One connection of the HTTP server: reads requests one after the other, writes their answers.
// Everything here runs on the I/O thread.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "server/http_server.h"

namespace deltafin {

class Connection;

// What a connection needs of its server.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  virtual const HttpServerOptions& options() const = 0;
  virtual const HttpServer::Callbacks& callbacks() const = 0;
  virtual std::shared_ptr<boost::asio::io_context> io() = 0;
  // Calls the handler on a worker.
  virtual void Handle(std::shared_ptr<const HttpRequest> request,
                      std::shared_ptr<Exchange> exchange) = 0;
  virtual void CountTimeout() = 0;
  virtual void CountResponse(int status) = 0;
  virtual bool stopping() const = 0;
  virtual void Forget(Connection* connection) = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(boost::asio::ip::tcp::socket socket, ConnectionOwner* owner);

  void Start();
  // Refuses everything with 503 and closes.
  void Refuse(const std::string& message);
  // About every second: time limits, and the tick of the exchange.
  void Tick(Clock::time_point now);
  void Close();
  // Between two requests, or in the middle of reading one.
  bool may_be_evicted() const { return state_ == State::kReading; }
  bool is_idle() const { return state_ == State::kReading && !has_begun_; }
  Clock::time_point last_activity() const { return last_activity_; }

  // ---- for the exchange; `serial` says which request is meant: late calls do nothing ----
  void Send(uint64_t serial, const HttpResponse& response);
  void BeginStream(uint64_t serial, const HttpResponse& head);
  void Write(uint64_t serial, std::string_view bytes);
  void EndStream(uint64_t serial);
  void OnClientLeft(uint64_t serial, std::function<void()> callback);
  void OnTick(uint64_t serial, std::function<void()> callback);
  size_t unsent_bytes() const { return out_.size() + in_flight_.size(); }
  boost::asio::io_context& io() { return *io_; }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class State : uint8_t {
    kReading,   // a request, or waiting for one
    kHandling,  // its answer is not complete
    kFlushing,  // it is, and some of it is not with the client yet
    kDraining,  // the last answer went out: what still comes in is thrown away
    kClosed,
  };

  bool IsCurrent(uint64_t serial) const { return state_ == State::kHandling && serial == serial_; }
  double SecondsForRequest() const;
  void BeginRequest();
  void Read();
  void OnRead(boost::system::error_code error, size_t bytes);
  void Feed();
  bool CheckHead();
  void Dispatch();
  void FailRequest(int status, const std::string& message);
  void WriteHead(const HttpResponse& response, bool is_stream);
  void Flush();
  void OnWritten(boost::system::error_code error, size_t bytes);
  void EndResponse();
  void NextRequest();
  void Drain();

  // A job may hold an exchange for a moment longer than there is a server.
  const std::shared_ptr<boost::asio::io_context> io_;
  boost::asio::ip::tcp::socket socket_;
  ConnectionOwner* owner_;  // outlives the I/O thread's work
  State state_ = State::kReading;
  uint64_t serial_ = 0;

  std::array<char, 8192> chunk_;  // that is being read
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  bool reading_ = false;
  bool has_begun_ = false;  // the first byte of a request is there
  bool head_is_checked_ = false;
  Clock::time_point request_began_;
  Clock::time_point last_activity_ = Clock::now();

  std::string out_;
  std::string in_flight_;
  Clock::time_point last_written_ = Clock::now();
  bool keep_alive_ = true;
  bool head_only_ = false;  // a HEAD request
  bool is_chunked_ = false;
  bool is_http_1_0_ = false;
  bool stream_begun_ = false;
  std::function<void()> on_client_left_;
  std::function<void()> on_tick_;
};

}  // namespace deltafin
