#include "hub_double.h"

#include <httplib.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "io/file.h"
#include "io/hash.h"

namespace deltafin {
namespace {

using std::chrono::milliseconds;

constexpr size_t kChunkBytes = 64 << 10;
// Longer than any client here waits for a byte.
constexpr milliseconds kStall{3000};
constexpr milliseconds kTrickle{2};
constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

bool IsLarge(const std::string& file) { return file.ends_with(".safetensors"); }

// "bytes=A-B"
std::optional<std::pair<uint64_t, uint64_t>> ParseRange(const std::string& text) {
  uint64_t first = 0;
  uint64_t last = 0;
  if (!text.starts_with("bytes=")) return {};
  const char* const end = text.data() + text.size();
  const auto [dash, error] = std::from_chars(text.data() + 6, end, first);
  if (error != std::errc() || dash == end || *dash != '-') return {};
  const auto [stop, other_error] = std::from_chars(dash + 1, end, last);
  if (other_error != std::errc() || stop != end || last < first) return {};
  return std::pair(first, last);
}

std::string ReadPart(const std::string& path, uint64_t offset, uint64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  return text;
}

void Start(httplib::Server& server, int* port, std::thread* thread) {
  server.new_task_queue = [] { return new httplib::ThreadPool(40); };
  server.set_keep_alive_max_count(1'000'000);
  server.set_tcp_nodelay(true);
  *port = server.bind_to_any_port("127.0.0.1");
  *thread = std::thread([&server] { server.listen_after_bind(); });
  // A server that is told to stop before it runs would never stop.
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

struct HubDouble::Exchange {
  const httplib::Request& request;
  httplib::Response& response;
};

struct HubDouble::Servers {
  httplib::Server hub;
  httplib::Server store;
  int hub_port = 0;
  int store_port = 0;
  std::thread hub_thread;
  std::thread store_thread;
};

HubDouble::HubDouble(const std::string& root) : root_(root), servers_(std::make_unique<Servers>()) {
  ::setenv("no_proxy", "127.0.0.1", 1);  // no proxy finds this hub
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    const auto file = RealFileSystem().OpenForReading(entry.path().string());
    sha256_[entry.path().filename().string()] = Sha256OfFile(*file);
  }
  Serve();
}

HubDouble::~HubDouble() {
  stopping_ = true;
  servers_->hub.stop();
  servers_->store.stop();
  servers_->hub_thread.join();
  servers_->store_thread.join();
}

std::string HubDouble::endpoint() const {
  return "http://127.0.0.1:" + std::to_string(servers_->hub_port);
}

void HubDouble::SetFaults(std::function<HubFault(const HubRequest&)> faults) {
  const std::lock_guard lock(mutex_);
  faults_ = std::move(faults);
}

std::vector<std::pair<uint64_t, uint64_t>> HubDouble::ranges(const std::string& file) const {
  const std::lock_guard lock(mutex_);
  const auto it = ranges_.find(file);
  return it == ranges_.end() ? std::vector<std::pair<uint64_t, uint64_t>>() : it->second;
}

void HubDouble::Serve() {
  servers_->hub.Get(R"(/[^/]+/[^/]+/resolve/[^/]+/([^/]+))",
                    [this](const httplib::Request& request, httplib::Response& response) {
                      Exchange exchange{request, response};
                      AnswerHub(exchange);
                    });
  servers_->store.Get(R"(/blobs/([^/]+)/([^/]+))",
                      [this](const httplib::Request& request, httplib::Response& response) {
                        Exchange exchange{request, response};
                        AnswerLink(exchange);
                      });
  Start(servers_->hub, &servers_->hub_port, &servers_->hub_thread);
  Start(servers_->store, &servers_->store_port, &servers_->store_thread);
}

HubFault HubDouble::NextFault(HubRequest::Stage stage, const std::string& file) {
  const std::lock_guard lock(mutex_);
  const int64_t number = num_requests_++;
  return faults_ ? faults_({stage, file, number}) : HubFault::kNone;
}

std::string HubDouble::MakeLink(const std::string& file) {
  const std::lock_guard lock(mutex_);
  const std::string id = "sig" + std::to_string(next_link_++);
  link_uses_[id] = 0;
  return "http://127.0.0.1:" + std::to_string(servers_->store_port) + "/blobs/" + id + "/" + file +
         "?X-Amz-Signature=secret";
}

bool HubDouble::UseLink(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = link_uses_.find(id);
  return it != link_uses_.end() && (uses_per_link_ == 0 || it->second++ < uses_per_link_);
}

void HubDouble::AnswerHub(Exchange& exchange) {
  const auto& [request, response] = exchange;
  const std::string file = request.matches[1];
  const bool is_head = request.method == "HEAD";
  const HubFault fault =
      NextFault(is_head ? HubRequest::Stage::kHead : HubRequest::Stage::kResolve, file);
  // The library would apply the range a second time.
  const_cast<httplib::Request&>(request).ranges.clear();
  if (!token_.empty() && request.get_header_value("Authorization") != "Bearer " + token_) {
    response.status = 401;
    return;
  }
  if (!sha256_.contains(file)) {
    response.status = 404;
    return;
  }
  response.set_header("X-Repo-Commit", kCommit);
  if (!IsLarge(file) || serves_itself_ || fault != HubFault::kNone) {
    SendFile(exchange, file, fault);
    return;
  }
  const uint64_t bytes = std::filesystem::file_size(root_ + "/" + file);
  response.set_header("X-Linked-Size", std::to_string(bytes));
  if (says_sha256_) response.set_header("X-Linked-ETag", "\"" + sha256_.at(file) + "\"");
  response.set_redirect(MakeLink(file));
}

void HubDouble::AnswerLink(Exchange& exchange) {
  const auto& [request, response] = exchange;
  const std::string file = request.matches[2];
  const HubFault fault = NextFault(HubRequest::Stage::kLink, file);
  const_cast<httplib::Request&>(request).ranges.clear();
  ++num_link_requests_;
  num_leaks_ += request.has_header("Authorization");
  if (!UseLink(request.matches[1])) {
    response.status = 403;
    response.set_content("<Error>Request has expired</Error>", "application/xml");
    return;
  }
  SendFile(exchange, file, fault);
}

void HubDouble::SendFile(Exchange& exchange, const std::string& file, HubFault fault) {
  const auto& [request, response] = exchange;
  const std::map<HubFault, int> statuses = {
      {HubFault::kBusy, 429},        {HubFault::kServerError, 500}, {HubFault::kBadGateway, 502},
      {HubFault::kUnavailable, 503}, {HubFault::kForbidden, 403},   {HubFault::kNotFound, 404},
      {HubFault::kRangeRefused, 416}};
  if (const auto it = statuses.find(fault); it != statuses.end()) {
    response.status = it->second;
    if (fault == HubFault::kBusy) response.set_header("Retry-After", "0");
    response.set_content("<html>" + std::string(300, 'x') + "</html>", "text/html");
    return;
  }
  const std::string path = root_ + "/" + file;
  const uint64_t total = std::filesystem::file_size(path);
  auto range = ParseRange(request.get_header_value("Range"));
  if (fault == HubFault::kWholeFile) range.reset();
  uint64_t first = 0;
  uint64_t bytes = total;
  if (range) {
    if (range->first >= total) {
      response.status = 416;
      return;
    }
    first = range->first;
    bytes = std::min(range->second, total - 1) - first + 1;
    {
      const std::lock_guard lock(mutex_);
      ranges_[file].emplace_back(first, bytes);
    }
    if (fault == HubFault::kOtherRange) first = first > 0 ? first - 1 : first + 1;
    if (fault == HubFault::kShortLength && bytes > 1) bytes /= 2;
    bytes = std::min(bytes, total - first);
    response.status = 206;
    const uint64_t said = fault == HubFault::kOtherTotal ? total + 1 : total;
    const uint64_t said_last = fault == HubFault::kShortLength ? range->second : first + bytes - 1;
    if (fault != HubFault::kNoContentRange) {
      response.set_header("Content-Range", "bytes " + std::to_string(first) + "-" +
                                               std::to_string(said_last) + "/" +
                                               std::to_string(said));
    }
  }
  const uint64_t cut = fault == HubFault::kEarlyEnd                                 ? 0
                       : fault == HubFault::kTruncated || fault == HubFault::kStall ? bytes / 2
                                                                                    : bytes;
  response.set_content_provider(
      bytes, "application/octet-stream",
      [this, path, first, cut, fault](size_t offset, size_t length, httplib::DataSink& sink) {
        if (offset >= cut) {
          const auto end = std::chrono::steady_clock::now() + kStall;
          while (fault == HubFault::kStall && !stopping_ &&
                 std::chrono::steady_clock::now() < end) {
            std::this_thread::sleep_for(milliseconds(20));
          }
          return false;
        }
        size_t count = std::min({length, kChunkBytes, static_cast<size_t>(cut - offset)});
        if (fault == HubFault::kSlow) {
          count = std::min<size_t>(count, 4096);
          std::this_thread::sleep_for(kTrickle);
        }
        if (const uint64_t rate = bytes_per_second_; rate > 0) {
          std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(count) /
                                                                    static_cast<double>(rate)));
        }
        const std::string text = ReadPart(path, first + offset, count);
        body_bytes_ += count;
        return sink.write(text.data(), text.size());
      });
}

}  // namespace deltafin
