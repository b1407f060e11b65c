#include "server/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "server/access.h"
#include "server/api_error.h"
#include "server/live_feed.h"
#include "server/metrics.h"
#include "server/page_files.h"
#include "server/service.h"

namespace deltafin {
namespace {

// What is left of running answers gets so long to reach the clients.
constexpr double kFlushSeconds = 5;

// Adds headers to whatever is answered.
class HeadersExchange final : public Exchange {
 public:
  HeadersExchange(std::shared_ptr<Exchange> exchange, HttpHeaders headers)
      : exchange_(std::move(exchange)), headers_(std::move(headers)) {}
  void Post(std::function<void()> task) override { exchange_->Post(std::move(task)); }
  void Send(HttpResponse response) override { exchange_->Send(Add(std::move(response))); }
  void BeginStream(HttpResponse head) override { exchange_->BeginStream(Add(std::move(head))); }
  void Write(std::string_view bytes) override { exchange_->Write(bytes); }
  void EndStream() override { exchange_->EndStream(); }
  size_t unsent_bytes() const override { return exchange_->unsent_bytes(); }
  void OnClientLeft(std::function<void()> callback) override {
    exchange_->OnClientLeft(std::move(callback));
  }
  void OnTick(std::function<void()> callback) override { exchange_->OnTick(std::move(callback)); }

 private:
  HttpResponse Add(HttpResponse response) const {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    return response;
  }

  std::shared_ptr<Exchange> exchange_;
  HttpHeaders headers_;
};

struct Route {
  const char* method;
  const char* path;  // ends with "/*": every path that begins so
  Endpoint endpoint;
};

class ServerImpl final : public Server {
 public:
  ServerImpl(Engine& engine, Scheduler& scheduler, const ServerOptions& options)
      : options_(options),
        engine_(engine),
        scheduler_(scheduler),
        live_(engine, scheduler, list_,
              LiveHello(engine, options.version, options.model_names.at(0), options.scheduler)) {
    const bool loopback = IsLoopback(options.http.host);
    if (!loopback && options.api_key.empty() && !options.insecure) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--host " + options.http.host +
                      ": others could use this server without a key; pass --api-key KEY, or "
                      "--insecure if that is what you want");
    }
    rules_ = {options.api_key, loopback && options.api_key.empty(), options.origins};
    service_.engine = &engine;
    service_.limits = {options.model_names,
                       &engine.tokenizer(),
                       engine.info().context_tokens,
                       options.max_new_tokens,
                       16,
                       options.scheduler.parallel + options.scheduler.max_queued};
    service_.generation = {&scheduler, &list_, [this] { return stopping_.load(); }, options.log};
    service_.version = options.version;
    service_.started = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
    service_.draft_tokens = options.draft_tokens;
    http_ = HttpServer::Create(
        options.http,
        {[this](const auto& request, const auto& exchange) { Handle(request, exchange); },
         [this](const HttpRequest& head) { return Admit(head); },
         [](int status, const std::string& message) {
           return ErrorResponse(ApiError(status, message));
         }});
    http_->Every(LiveFeed::kTickSeconds, [this] {
      live_.Tick();
      ReportFailedStates();
    });
    http_->Start();
  }

  ~ServerImpl() override { Stop(0); }
  ServerImpl(const ServerImpl&) = delete;
  ServerImpl& operator=(const ServerImpl&) = delete;

  uint16_t port() const override { return http_->port(); }

  void Stop(double seconds) override {
    if (stopping_.exchange(true)) return;
    scheduler_.Stop(seconds);
    // No callback of a job comes after this: what it left to the I/O thread is sent.
    http_->Post([this] { live_.Stop(); });
    http_->Stop(kFlushSeconds);
  }

 private:
  // On the I/O thread. Nobody would know otherwise why a restarted server computes all again.
  void ReportFailedStates() {
    const uint64_t failed = scheduler_.stats().failed_states;
    const uint64_t more = failed - std::exchange(failed_states_, failed);
    if (more == 0) return;
    options_.log("kept states that could not be written or read: " + std::to_string(more) +
                 "; what they hold is computed again. Is the disk of --keep-dir full?");
  }

  // ---- before the body, on the I/O thread ----

  std::optional<HttpResponse> Admit(const HttpRequest& head) const {
    HttpHeaders cors;
    try {
      cors = CheckOrigin(rules_, head);
      if (head.method == "OPTIONS" && !cors.empty()) return Preflight(cors);
      CheckRequest(head);
      return std::nullopt;
    } catch (const ApiError& error) {
      HttpResponse response = ErrorResponse(error);
      if (error.status() == 405) response.headers.emplace_back("Allow", MethodsOf(head.path));
      response.headers.insert(response.headers.end(), cors.begin(), cors.end());
      return response;
    }
  }

  static HttpResponse Preflight(HttpHeaders headers) {
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
    headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type, *");
    headers.emplace_back("Access-Control-Max-Age", "600");
    return {204, "", "", std::move(headers)};
  }

  void CheckRequest(const HttpRequest& head) const {
    const std::string methods = MethodsOf(head.path);
    const bool is_public = head.path == "/health" || FindPageFile(head.path) != nullptr;
    if (!is_public && !HasKey(rules_, head)) {
      throw ApiError(401, "a valid key is needed: Authorization: Bearer KEY", "",
                     "invalid_api_key");
    }
    if (methods.empty()) {
      throw ApiError(404,
                     "there is nothing at this address; chats are answered at POST "
                     "/v1/chat/completions, texts at POST /v1/completions",
                     "", "not_found");
    }
    if (FindRoute(head) == nullptr) {
      throw ApiError(405, "this address takes " + methods + " only", "", "method_not_allowed");
    }
    if (stopping_) throw ApiError(503, "the server is stopping");
    if (head.method != "POST") return;
    std::string type(head.Header("content-type"));
    type.resize(std::min(type.size(), type.find(';')));
    std::transform(type.begin(), type.end(), type.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    while (type.ends_with(' ')) type.pop_back();
    if (type != "application/json") {
      throw ApiError(415, "expected a JSON body, and the header Content-Type: application/json");
    }
  }

  static std::span<const Route> Routes() {
    static constexpr std::array kRoutes = {
        Route{"POST", "/v1/chat/completions", HandleChat},
        Route{"POST", "/v1/completions", HandleCompletion},
        Route{"POST", "/v1/responses", HandleResponses},
        Route{"GET", "/v1/models", HandleModels},
        Route{"GET", "/v1/models/*", HandleModel},
        Route{"POST", "/tokenize", HandleTokenize},
        Route{"POST", "/detokenize", HandleDetokenize},
        Route{"GET", "/health", nullptr},
        Route{"GET", "/metrics", nullptr},
        Route{"GET", "/api/live", nullptr},
    };
    return kRoutes;
  }

  static bool Matches(const Route& route, std::string_view path) {
    std::string_view pattern = route.path;
    if (!pattern.ends_with("/*")) return path == pattern;
    pattern.remove_suffix(1);
    return path.starts_with(pattern) && path.size() > pattern.size();
  }

  static std::string MethodsOf(std::string_view path) {
    for (const Route& route : Routes()) {
      if (Matches(route, path)) return route.method;
    }
    return FindPageFile(path) != nullptr ? "GET" : "";
  }

  // A page's file has a route of its own.
  static const Route* FindRoute(const HttpRequest& request) {
    static constexpr Route kPage{"GET", "/", HandlePage};
    const std::string method = request.method == "HEAD" ? "GET" : request.method;
    for (const Route& route : Routes()) {
      if (Matches(route, request.path)) return method == route.method ? &route : nullptr;
    }
    return method == "GET" && FindPageFile(request.path) != nullptr ? &kPage : nullptr;
  }

  // ---- on a worker ----

  void Handle(const std::shared_ptr<const HttpRequest>& request,
              std::shared_ptr<Exchange> exchange) {
    try {
      HttpHeaders cors = CheckOrigin(rules_, *request);
      if (!cors.empty()) {
        exchange = std::make_shared<HeadersExchange>(std::move(exchange), std::move(cors));
      }
      const Route* const route = FindRoute(*request);
      if (route == nullptr) throw ApiError(404, "there is nothing at this address");
      if (route->endpoint != nullptr) return route->endpoint(service_, *request, exchange);
      HandleOwn(request->path, exchange);
    } catch (const ApiError& error) {
      exchange->Send(ErrorResponse(error));
    } catch (const Error& error) {
      options_.log(request->path + ": " + error.what());
      exchange->Send(ErrorResponse(ApiError(500, "the request failed; the server's log says why")));
    } catch (const std::bad_alloc&) {
      exchange->Send(ErrorResponse(ApiError(503, "not enough memory for this request")));
    }
  }

  void HandleOwn(const std::string& path, const std::shared_ptr<Exchange>& exchange) {
    if (path == "/health") {
      const SchedulerStats stats = scheduler_.stats();
      return SendJson({{"status", "ok"},
                       {"model", options_.model_names.front()},
                       {"running", stats.running},
                       {"queued", stats.queued}},
                      {}, exchange);
    }
    if (path == "/metrics") {
      return exchange->Send({200,
                             "text/plain; version=0.0.4; charset=utf-8",
                             MetricsText(engine_, scheduler_.stats(), http_->stats()),
                             {}});
    }
    exchange->Post([this, exchange] { live_.Add(exchange); });
  }

  const ServerOptions options_;
  Engine& engine_;
  Scheduler& scheduler_;
  AccessRules rules_;
  Service service_;
  std::atomic<bool> stopping_ = false;
  GenerationList list_;         // I/O thread
  LiveFeed live_;               // I/O thread
  uint64_t failed_states_ = 0;  // I/O thread
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

std::unique_ptr<Server> Server::Start(Engine& engine, Scheduler& scheduler,
                                      const ServerOptions& options) {
  return std::make_unique<ServerImpl>(engine, scheduler, options);
}

}  // namespace deltafin
