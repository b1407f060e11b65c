#include "server/http_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/string.hpp>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "deltafin/error.h"
#include "server/http_connection.h"

namespace deltafin {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto kTick = std::chrono::milliseconds(500);
constexpr auto kAcceptAgain = std::chrono::milliseconds(100);

class Server final : public HttpServer, public ConnectionOwner {
 public:
  Server(const HttpServerOptions& options, Callbacks callbacks)
      : options_(options),
        callbacks_(std::move(callbacks)),
        acceptor_(*io_),
        tick_(*io_),
        accept_again_(*io_),
        workers_(static_cast<size_t>(std::max(1, options.workers))) {
    Listen();
  }

  ~Server() override { Stop(0); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void Start() override {
    Accept();
    Tick();
    thread_ = std::thread([this] { io_->run(); });
  }

  uint16_t port() const override { return port_; }
  void Post(std::function<void()> task) override { asio::post(*io_, std::move(task)); }

  HttpServerStats stats() const override {
    HttpServerStats stats{num_connections_, accepted_, refused_, timed_out_, {}};
    for (size_t status = 0; status < num_responses_.size(); ++status) {
      if (num_responses_[status] > 0)
        stats.responses[static_cast<int>(status)] = num_responses_[status];
    }
    return stats;
  }

  void Every(double seconds, std::function<void()> task) override {
    asio::post(*io_, [this, seconds, task = std::move(task)]() mutable {
      timers_.emplace_back(*io_);
      Repeat(&timers_.back(), seconds, std::make_shared<std::function<void()>>(std::move(task)));
    });
  }

  void Stop(double seconds) override {
    if (!thread_.joinable()) return;
    stopping_ = true;
    asio::post(*io_, [this] {
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      accept_again_.cancel();
      for (const auto& connection : Connections()) {
        if (connection->may_be_evicted()) connection->Close();
      }
    });
    {
      std::unique_lock lock(mutex_);
      all_gone_.wait_for(lock, std::chrono::duration<double>(seconds),
                         [this] { return num_connections_ == 0; });
    }
    workers_.stop();
    workers_.join();
    asio::post(*io_, [this] {
      for (const auto& connection : Connections()) connection->Close();
      closed_ = true;
      tick_.cancel();
      for (asio::steady_timer& timer : timers_) timer.cancel();
      work_.reset();  // the thread ends when nothing is left to do
    });
    thread_.join();
  }

 private:
  // ---- for connections ----
  const HttpServerOptions& options() const override { return options_; }
  const Callbacks& callbacks() const override { return callbacks_; }
  std::shared_ptr<asio::io_context> io() override { return io_; }
  bool stopping() const override { return stopping_; }
  void CountTimeout() override { ++timed_out_; }
  void CountResponse(int status) override { ++num_responses_[static_cast<size_t>(status) % 600]; }

  void Handle(std::shared_ptr<const HttpRequest> request,
              std::shared_ptr<Exchange> exchange) override {
    asio::post(workers_, [this, request = std::move(request), exchange = std::move(exchange)] {
      try {
        callbacks_.handle(request, exchange);
      } catch (const std::exception&) {
        // What it says may name things of this machine.
        exchange->Send(callbacks_.error(500, "the request failed for a reason unforeseen"));
      }
    });
  }

  void Forget(Connection* connection) override {
    connections_.erase(connection);
    const std::lock_guard lock(mutex_);
    num_connections_ = connections_.size();
    if (connections_.empty()) all_gone_.notify_all();
  }

  // ---- accepting ----

  void Listen() {
    const std::string host = options_.host == "*" ? "" : options_.host;
    const auto fail = [&](const std::string& why) {
      throw Error(ErrorCode::kIo, "cannot listen on " + (host.empty() ? "*" : host) + ":" +
                                      std::to_string(options_.port) + ": " + why);
    };
    boost::system::error_code error;
    tcp::endpoint endpoint(tcp::v6(), options_.port);
    if (!host.empty()) {
      tcp::resolver resolver(*io_);
      const auto found =
          resolver.resolve(host, std::to_string(options_.port), tcp::resolver::passive, error);
      if (error) fail(error.message());
      endpoint = found.begin()->endpoint();
    }
    acceptor_.open(endpoint.protocol(), error);
    if (error && host.empty()) {  // no IPv6 here
      endpoint = tcp::endpoint(tcp::v4(), options_.port);
      acceptor_.open(endpoint.protocol(), error);
    }
    if (error) fail(error.message());
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (host.empty() && endpoint.address().is_v6()) {
      acceptor_.set_option(asio::ip::v6_only(false), error);
    }
    acceptor_.bind(endpoint, error);
    if (error) fail(error.message());
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) fail(error.message());
    port_ = acceptor_.local_endpoint().port();
  }

  void Accept() {
    acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) {  // no descriptors left: some will come back
        accept_again_.expires_after(kAcceptAgain);
        accept_again_.async_wait([this](boost::system::error_code cancelled) {
          if (!cancelled && acceptor_.is_open()) Accept();
        });
        return;
      }
      Take(std::move(socket));
      Accept();
    });
  }

  void Take(tcp::socket socket) {
    ++accepted_;
    const bool is_full = connections_.size() >= options_.max_connections && !EvictOne();
    const auto connection = std::make_shared<Connection>(std::move(socket), this);
    connections_.emplace(connection.get(), connection);
    num_connections_ = connections_.size();
    if (!is_full) return connection->Start();
    ++refused_;
    // Twice the limit is the end of politeness.
    if (connections_.size() > 2 * options_.max_connections) return connection->Close();
    connection->Refuse("too many connections; try again later");
  }

  // Closes the connection that has been without a complete request for the longest time.
  bool EvictOne() {
    std::shared_ptr<Connection> oldest;
    for (const auto& [key, connection] : connections_) {
      if (!connection->may_be_evicted()) continue;
      if (!oldest || connection->last_activity() < oldest->last_activity()) oldest = connection;
    }
    if (!oldest) return false;
    ++refused_;
    oldest->Close();
    return true;
  }

  // ---- time ----

  void Tick() {
    tick_.expires_after(kTick);
    tick_.async_wait([this](boost::system::error_code cancelled) {
      if (cancelled || closed_) return;
      const auto now = Connection::Clock::now();
      for (const auto& connection : Connections()) connection->Tick(now);
      Tick();
    });
  }

  void Repeat(asio::steady_timer* timer, double seconds,
              const std::shared_ptr<std::function<void()>>& task) {
    timer->expires_after(std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
    timer->async_wait([this, timer, seconds, task](boost::system::error_code cancelled) {
      if (cancelled || closed_) return;
      (*task)();
      Repeat(timer, seconds, task);
    });
  }

  // A copy: closing one takes it out of the map.
  std::vector<std::shared_ptr<Connection>> Connections() const {
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(connections_.size());
    for (const auto& [key, connection] : connections_) all.push_back(connection);
    return all;
  }

  const HttpServerOptions options_;
  const Callbacks callbacks_;
  const std::shared_ptr<asio::io_context> io_ = std::make_shared<asio::io_context>(1);
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(*io_);
  tcp::acceptor acceptor_;
  asio::steady_timer tick_;
  asio::steady_timer accept_again_;
  std::list<asio::steady_timer> timers_;
  asio::thread_pool workers_;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;

  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;  // I/O thread
  bool closed_ = false;                                                       // I/O thread
  std::mutex mutex_;                                                          // for all_gone_
  std::condition_variable all_gone_;
  std::atomic<size_t> num_connections_ = 0;
  std::atomic<uint64_t> accepted_ = 0;
  std::atomic<uint64_t> refused_ = 0;
  std::atomic<uint64_t> timed_out_ = 0;
  std::array<std::atomic<uint64_t>, 600> num_responses_{};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<HttpServer> HttpServer::Create(const HttpServerOptions& options,
                                               Callbacks callbacks) {
  return std::make_unique<Server>(options, std::move(callbacks));
}

bool IsLoopback(const std::string& host) {
  if (boost::beast::iequals(host, "localhost")) return true;
  boost::system::error_code error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  return !error && address.is_loopback();
}

}  // namespace deltafin
