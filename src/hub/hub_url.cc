#include "hub/hub_url.h"

#include <curl/curl.h>

#include <memory>

#include "base/format.h"

namespace deltafin {
namespace {

class Url {
 public:
  explicit Url(const std::string& text) : url_(::curl_url()) {
    valid_ = url_ != nullptr && Set(text);
  }
  ~Url() { ::curl_url_cleanup(url_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;

  // Relative to what it was.
  bool Set(const std::string& text) {
    return ::curl_url_set(url_, CURLUPART_URL, text.c_str(), 0) == CURLUE_OK;
  }
  void Clear(CURLUPart part) { (void)::curl_url_set(url_, part, nullptr, 0); }
  bool valid() const { return valid_; }
  std::string Get(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (::curl_url_get(url_, part, &text, flags) != CURLUE_OK) return "";
    std::string copy(text);
    ::curl_free(text);
    return copy;
  }
  bool IsHttp() const {
    const std::string scheme = Get(CURLUPART_SCHEME);
    return scheme == "http" || scheme == "https";
  }

 private:
  CURLU* url_;
  bool valid_ = false;
};

// Slashes separate folders; everything else that is special in an address is escaped.
std::string EscapePath(const std::string& path) {
  constexpr std::string_view kPlain = "-._~/";
  std::string escaped;
  for (const char c : path) {
    const bool alnum = ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
    if (alnum || kPlain.find(c) != std::string_view::npos) {
      escaped += c;
    } else {
      escaped += format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

std::string Endpoint(const HubOptions& options) {
  std::string endpoint = options.endpoint;
  while (!endpoint.empty() && endpoint.back() == '/') endpoint.pop_back();
  const Url url(endpoint);
  if (!url.valid() || !url.IsHttp()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("hub endpoint: expected an address like https://huggingface.co, got \"{}\"",
                       options.endpoint));
  }
  return endpoint;
}

}  // namespace

std::string HubUrl(const HubOptions& options, const std::string& file) {
  std::string path = options.path;
  if (path.empty()) {
    const std::string& revision = options.revision.empty() ? kPinnedRevision : options.revision;
    path = format("/{}/resolve/{}", EscapePath(options.repo), EscapePath(revision));
  }
  if (!path.starts_with('/')) path.insert(path.begin(), '/');
  while (!path.empty() && path.back() == '/') path.pop_back();
  return Endpoint(options) + path + "/" + EscapePath(file);
}

std::string HubName(const HubOptions& options) {
  const std::string endpoint = PrintableUrl(Endpoint(options));
  if (options.path.empty()) return endpoint + "/" + options.repo;
  return endpoint + (options.path.starts_with('/') ? "" : "/") + options.path;
}

bool SameOrigin(const std::string& url, const std::string& other) {
  const Url a(url);
  const Url b(other);
  if (!a.valid() || !b.valid()) return false;
  const auto same = [&](CURLUPart part) {
    return a.Get(part, CURLU_DEFAULT_PORT) == b.Get(part, CURLU_DEFAULT_PORT);
  };
  const auto host = [](const Url& of) {
    std::string name = of.Get(CURLUPART_HOST);
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return name;
  };
  return same(CURLUPART_SCHEME) && host(a) == host(b) && same(CURLUPART_PORT);
}

std::string ResolveLocation(const std::string& base, const std::string& location) {
  Url url(base);
  if (!url.valid() || !url.Set(location) || !url.IsHttp()) return "";
  return url.Get(CURLUPART_URL);
}

std::string PrintableUrl(const std::string& url) {
  Url parsed(url);
  if (!parsed.valid()) return url;
  for (const CURLUPart part :
       {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT}) {
    parsed.Clear(part);
  }
  std::string text = parsed.Get(CURLUPART_URL);
  if (text.ends_with('/')) text.pop_back();
  return text;
}

}  // namespace deltafin
