#include "hub/http_session.h"

#include <curl/curl.h>

#include <algorithm>
#include <ctime>
#include <mutex>
#include <utility>

#include "base/format.h"

namespace deltafin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr long kReceiveBytes = 512L << 10;
constexpr long kConnectSeconds = 20;

void InitCurlOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (::curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
      throw Error(ErrorCode::kNetwork, "libcurl cannot be started");
    }
  });
}

// What will be as wrong the next time.
bool IsPermanent(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return true;
    default:
      return false;
  }
}

}  // namespace

struct HttpSession::Multi {
  CURLM* handle = ::curl_multi_init();
  ~Multi() { ::curl_multi_cleanup(handle); }
};

struct HttpSession::Exchange {
  HttpHandler* handler = nullptr;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  HttpResponse response;
  bool head_told = false;
  Clock::time_point last_sign = Clock::now();
  char error[CURL_ERROR_SIZE] = {};

  ~Exchange() { ::curl_slist_free_all(headers); }

  // libcurl's callbacks: another return value than all of it ends the transfer.
  static size_t OnHeaderLine(char* data, size_t size, size_t count, void* self) {
    auto& exchange = *static_cast<Exchange*>(self);
    const size_t bytes = size * count;
    exchange.last_sign = Clock::now();
    const std::string_view line(data, bytes);
    if (line != "\r\n" && line != "\n") {
      TakeHeaderLine(line, static_cast<int64_t>(std::time(nullptr)), &exchange.response);
      return bytes;
    }
    // 1xx: another head follows.
    if (exchange.response.status < 200 || exchange.head_told) return bytes;
    exchange.head_told = true;
    return exchange.handler->OnHead(exchange.response) ? bytes : 0;
  }

  static size_t OnBodyBytes(char* data, size_t size, size_t count, void* self) {
    auto& exchange = *static_cast<Exchange*>(self);
    const size_t bytes = size * count;
    const bool goes_on =
        exchange.handler->OnBody({reinterpret_cast<const std::byte*>(data), bytes});
    // After the handler: the time that it takes is not the server's.
    exchange.last_sign = Clock::now();
    return goes_on ? bytes : 0;
  }
};

HttpSession::HttpSession(const HubOptions& options) : options_(options) {
  InitCurlOnce();
  multi_ = std::make_unique<Multi>();
  if (multi_->handle == nullptr) throw Error(ErrorCode::kNetwork, "libcurl has no memory");
  ::curl_multi_setopt(multi_->handle, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
  ::curl_multi_setopt(multi_->handle, CURLMOPT_MAXCONNECTS, long{options.jobs} + 4);
}

HttpSession::~HttpSession() {
  for (const auto& exchange : exchanges_) {
    ::curl_multi_remove_handle(multi_->handle, exchange->easy);
    ::curl_easy_cleanup(exchange->easy);
  }
  for (void* easy : idle_) ::curl_easy_cleanup(easy);
}

void HttpSession::Start(const HttpRequest& request, HttpHandler* handler) {
  auto exchange = std::make_unique<Exchange>();
  exchange->handler = handler;
  if (idle_.empty()) {
    exchange->easy = ::curl_easy_init();
    if (exchange->easy == nullptr) throw Error(ErrorCode::kNetwork, "libcurl has no memory");
  } else {
    exchange->easy = idle_.back();
    idle_.pop_back();
    ::curl_easy_reset(exchange->easy);
  }
  CURL* easy = exchange->easy;
  const auto set = [easy](CURLoption option, auto value) {
    (void)::curl_easy_setopt(easy, option, value);
  };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  set(CURLOPT_USERAGENT, "deltafin");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_BUFFERSIZE, kReceiveBytes);
  set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  set(CURLOPT_ERRORBUFFER, exchange->error);
  set(CURLOPT_HEADERFUNCTION, &Exchange::OnHeaderLine);
  set(CURLOPT_HEADERDATA, exchange.get());
  set(CURLOPT_WRITEFUNCTION, &Exchange::OnBodyBytes);
  set(CURLOPT_WRITEDATA, exchange.get());
  if (!options_.ca_bundle.empty()) set(CURLOPT_CAINFO, options_.ca_bundle.c_str());
  if (request.method == HttpRequest::Method::kHead) set(CURLOPT_NOBODY, 1L);
  if (request.range) {
    set(CURLOPT_RANGE, format("{}-{}", request.range->offset, request.range->end() - 1).c_str());
  }
  if (!request.token.empty()) {
    exchange->headers =
        ::curl_slist_append(nullptr, format("Authorization: Bearer {}", request.token).c_str());
    set(CURLOPT_HTTPHEADER, exchange->headers);
  }
  ::curl_multi_add_handle(multi_->handle, easy);
  exchanges_.push_back(std::move(exchange));
}

void HttpSession::Finish(size_t index, const HttpEnd& end) {
  const std::unique_ptr<Exchange> exchange = std::move(exchanges_[index]);
  exchanges_.erase(exchanges_.begin() + static_cast<ptrdiff_t>(index));
  ::curl_multi_remove_handle(multi_->handle, exchange->easy);
  idle_.push_back(exchange->easy);
  exchange->handler->OnEnd(end);
}

void HttpSession::Abort(HttpHandler* handler) {
  const auto it = std::find_if(exchanges_.begin(), exchanges_.end(),
                               [&](const auto& e) { return e->handler == handler; });
  if (it == exchanges_.end()) return;
  ::curl_multi_remove_handle(multi_->handle, (*it)->easy);
  idle_.push_back((*it)->easy);
  exchanges_.erase(it);
}

void HttpSession::Perform() {
  int running = 0;
  ::curl_multi_perform(multi_->handle, &running);
  int left = 0;
  while (const CURLMsg* message = ::curl_multi_info_read(multi_->handle, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    const auto it = std::find_if(exchanges_.begin(), exchanges_.end(),
                                 [&](const auto& e) { return e->easy == message->easy_handle; });
    if (it == exchanges_.end()) continue;
    HttpEnd end;
    end.complete = code == CURLE_OK;
    end.transient = !IsPermanent(code);
    if (code != CURLE_OK) {
      end.reason = (*it)->error[0] != '\0' ? (*it)->error : ::curl_easy_strerror(code);
    }
    Finish(static_cast<size_t>(it - exchanges_.begin()), end);
  }
  EndStalled();
}

void HttpSession::EndStalled() {
  const auto limit = std::chrono::duration<double>(options_.stall_seconds);
  for (size_t i = exchanges_.size(); i-- > 0;) {
    if (i >= exchanges_.size() || Clock::now() - exchanges_[i]->last_sign < limit) continue;
    HttpEnd end;
    end.reason = format("nothing came for {:g} seconds", options_.stall_seconds);
    Finish(i, end);
  }
}

void HttpSession::Wait(std::chrono::milliseconds timeout) {
  ::curl_multi_poll(multi_->handle, nullptr, 0, static_cast<int>(timeout.count()), nullptr);
}

void HttpSession::Wake() noexcept { ::curl_multi_wakeup(multi_->handle); }

}  // namespace deltafin
