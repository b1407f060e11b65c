#include "server/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "deltafin/error.h"
#include "server/server_test_util.h"

namespace deltafin {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class HttpServerTest : public testing::Test {
 protected:
  // Echoes the request; "/stream" sends three pieces, "/never" answers nothing, "/throw" throws.
  void Start(HttpServerOptions options = {}) {
    options.port = 0;
    HttpServer::Callbacks callbacks;
    callbacks.handle = [this](const auto& request, const auto& exchange) {
      Handle(*request, exchange);
    };
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

  void Handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    if (request.path == "/throw") throw std::runtime_error("secret");
    if (request.path == "/never" || request.path == "/stream") {
      exchange->Post([this, exchange, path = request.path] {
        if (path == "/stream") {
          exchange->BeginStream({200, "text/plain", "a", {}});
          exchange->Write("bc");
          exchange->EndStream();
        }
        exchange->OnClientLeft([this] { ++clients_left_; });
        ++waiting_;
      });
      return;
    }
    exchange->Send({200,
                    "text/plain",
                    request.method + " " + request.path + "?" + request.query + " " + request.body,
                    {{"X-Odd", "a\r\nb"}}});
  }

  template <typename Condition>
  void WaitFor(const Condition& condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(condition());
  }

  std::atomic<int> waiting_ = 0;  // requests of which the client's leaving will be noticed
  std::atomic<int> clients_left_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersOneAfterTheOther) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/a%20b?q=1"));
  const std::string response = client.ReadResponse();
  EXPECT_THAT(response, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(response, HasSubstr("Connection: keep-alive\r\n"));
  EXPECT_THAT(response, HasSubstr("X-Odd: a  b\r\n"));
  EXPECT_EQ(BodyOf(response), "GET /a b?q=1 ");
  client.Send(Post("/x", "body"));
  EXPECT_EQ(BodyOf(client.ReadResponse()), "POST /x? body");
}

TEST_F(HttpServerTest, RequestsThatAreSentAheadAreAnsweredInOrder) {
  Start();
  TestClient client(server_->port());
  client.Send(Post("/1", "x") + Post("/2", "y") +
              "GET /3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string all = client.ReadToClose();
  EXPECT_THAT(all, HasSubstr("POST /1? x"));
  EXPECT_THAT(all, HasSubstr("POST /2? y"));
  EXPECT_THAT(all, HasSubstr("GET /3? "));
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpServerTest, ByteByByte) {
  Start();
  TestClient client(server_->port());
  for (const char c : Post("/x", "slow")) client.Send(std::string(1, c));
  EXPECT_EQ(BodyOf(client.ReadResponse()), "POST /x? slow");
}

TEST_F(HttpServerTest, ChunkedBodiesAndExpectation) {
  Start();
  TestClient client(server_->port());
  client.Send(
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(BodyOf(client.ReadResponse()), "POST /x? abcde");
}

TEST_F(HttpServerTest, Streams) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/stream"));
  const std::string response = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(response, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_EQ(BodyOf(response), "1\r\na\r\n2\r\nbc\r\n0\r\n\r\n");
  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string plain = client.ReadToClose();
  EXPECT_THAT(plain, Not(HasSubstr("chunked")));
  EXPECT_EQ(BodyOf(plain), "abc");
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  Start();
  TestClient client(server_->port());
  client.Send("HEAD /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string response = client.ReadToClose();
  EXPECT_THAT(response, HasSubstr("Content-Length: 9\r\n"));
  EXPECT_EQ(BodyOf(response), "");
  TestClient other(server_->port());
  other.Send("HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n" + Get("/x"));
  const std::string both = other.ReadResponse();
  EXPECT_THAT(both, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(both, HasSubstr("\r\n\r\nHTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, LimitsAndNonsense) {
  HttpServerOptions options;
  options.max_body_bytes = 100;
  options.max_header_bytes = 1000;
  Start(options);
  const auto answer = [&](const std::string& request) {
    TestClient client(server_->port());
    client.Send(request);
    const std::string response = client.ReadToClose();
    EXPECT_TRUE(client.closed());
    return response.substr(0, response.find("\r\n"));
  };
  EXPECT_THAT(answer(Post("/x", std::string(101, 'x'))), HasSubstr("413"));
  EXPECT_THAT(answer("POST /x HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"), HasSubstr("413"));
  EXPECT_THAT(answer("POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n70\r\n" +
                     std::string(0x70, 'x')),
              HasSubstr("413"));
  EXPECT_THAT(answer(Get("/x", "X: " + std::string(2000, 'x') + "\r\n")), HasSubstr("431"));
  for (const std::string nonsense :
       {"\x16\x03\x01\x02\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\r\r\r\r\r\r\r\r\r",
        "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET / HTTP/1.1\r\nbad header\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"}) {
    EXPECT_THAT(answer(nonsense), HasSubstr("400")) << nonsense;
  }
  EXPECT_THAT(answer("POST /refused HTTP/1.1\r\nContent-Length: 50\r\n\r\n"), HasSubstr("401"));
}

TEST_F(HttpServerTest, AHandlerThatThrowsSaysNothingOfIt) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/throw"));
  const std::string response = client.ReadResponse();
  EXPECT_THAT(response, StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(response, Not(HasSubstr("secret")));
}

TEST_F(HttpServerTest, NoticesThatTheClientLeft) {
  Start();
  TestClient client(server_->port());
  client.Send(Get("/never"));
  WaitFor([&] { return waiting_ == 1; });
  EXPECT_EQ(clients_left_, 0);
  client.Close();
  WaitFor([&] { return clients_left_ == 1; });
}

TEST_F(HttpServerTest, SlowRequestsAreEndedAndHoldUpNobody) {
  HttpServerOptions options;
  options.workers = 1;
  options.header_seconds = 0.5;
  options.body_seconds = 0.5;
  Start(options);
  std::vector<std::unique_ptr<TestClient>> slow;
  for (int i = 0; i < 50; ++i) {
    slow.push_back(std::make_unique<TestClient>(server_->port()));
    slow.back()->Send(i % 2 == 0 ? "GET / HT" : "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx");
  }
  TestClient client(server_->port());
  client.Send(Get("/quick"));
  EXPECT_EQ(BodyOf(client.ReadResponse()), "GET /quick? ");
  for (const auto& one : slow) EXPECT_THAT(one->ReadToClose(), HasSubstr(" 408 "));
  EXPECT_EQ(server_->stats().timed_out, 50u);
}

TEST_F(HttpServerTest, AFloodCostsIdleConnectionsOnly) {
  HttpServerOptions options;
  options.max_connections = 4;
  Start(options);
  TestClient busy(server_->port());
  busy.Send(Get("/never"));
  WaitFor([&] { return waiting_ == 1; });
  std::vector<std::unique_ptr<TestClient>> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(std::make_unique<TestClient>(server_->port()));
  WaitFor([&] { return server_->stats().accepted == 21; });
  EXPECT_LE(server_->stats().connections, 4u);
  EXPECT_EQ(clients_left_, 0);
  TestClient client(server_->port());
  client.Send(Get("/x"));
  EXPECT_EQ(BodyOf(client.ReadResponse()), "GET /x? ");
}

TEST_F(HttpServerTest, WithoutRoomNewOnesAreRefused) {
  HttpServerOptions options;
  options.max_connections = 1;
  Start(options);
  TestClient busy(server_->port());
  busy.Send(Get("/never"));
  WaitFor([&] { return waiting_ == 1; });
  TestClient client(server_->port());
  EXPECT_THAT(client.ReadToClose(), HasSubstr(" 503 "));
}

TEST_F(HttpServerTest, ManyIdleConnectionsHold) {
  Start();
  std::vector<std::unique_ptr<TestClient>> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(std::make_unique<TestClient>(server_->port()));
    idle.back()->Send(Get("/1"));
    EXPECT_EQ(BodyOf(idle.back()->ReadResponse()), "GET /1? ");
  }
  for (const auto& client : idle) client->Send(Get("/2"));
  for (const auto& client : idle) EXPECT_EQ(BodyOf(client->ReadResponse()), "GET /2? ");
}

TEST_F(HttpServerTest, AClientThatTakesNothingIsDropped) {
  HttpServerOptions options;
  options.max_unsent_bytes = 1 << 20;
  options.port = 0;
  HttpServer::Callbacks callbacks;
  std::atomic<bool> left = false;
  callbacks.handle = [&](const auto&, const auto& exchange) {
    exchange->Post([&left, exchange] {
      exchange->OnClientLeft([&left] { left = true; });
      exchange->BeginStream({200, "text/plain", "", {}});
      for (int i = 0; i < 64; ++i) exchange->Write(std::string(256 << 10, 'x'));
    });
  };
  server_ = HttpServer::Create(options, std::move(callbacks));
  server_->Start();
  TestClient client(server_->port());
  client.Send(Get("/"));
  WaitFor([&] { return left.load(); });
  server_->Stop(0);
}

TEST_F(HttpServerTest, StopLetsAnswersGetThrough) {
  Start();
  TestClient idle(server_->port());
  TestClient client(server_->port());
  client.Send(Get("/x"));
  client.ReadResponse();
  server_->Stop(5);
  EXPECT_EQ(idle.ReadToClose(), "");
  EXPECT_TRUE(idle.closed());
  EXPECT_EQ(server_->stats().connections, 0u);
}

TEST_F(HttpServerTest, APortThatIsTakenIsAnError) {
  Start();
  HttpServerOptions options;
  options.port = server_->port();
  EXPECT_THROW(HttpServer::Create(options, {}), Error);
  options.host = "no such host";
  EXPECT_THROW(HttpServer::Create(options, {}), Error);
}

}  // namespace
}  // namespace deltafin
