#include "server/access.h"

#include <algorithm>

#include "server/api_error.h"
#include "server/http_server.h"

namespace deltafin {
namespace {

// "name:8000", "[::1]:8000" -> "name", "::1".
std::string HostName(std::string_view host) {
  if (host.starts_with('[')) return std::string(host.substr(1, host.find(']') - 1));
  return std::string(host.substr(0, host.find(':')));
}

}  // namespace

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  // As many steps as `a` has bytes, however long `b` is.
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

bool HasKey(const AccessRules& rules, const HttpRequest& request) {
  if (rules.api_key.empty()) return true;
  std::string_view value = request.Header("authorization");
  constexpr std::string_view kScheme = "bearer ";
  const bool is_bearer =
      value.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), value.begin(),
                 [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); });
  if (is_bearer) value.remove_prefix(kScheme.size());
  return EqualInConstantTime(rules.api_key, value) && is_bearer;
}

HttpHeaders CheckOrigin(const AccessRules& rules, const HttpRequest& request) {
  const std::string host(request.Header("host"));
  if (rules.loopback_hosts_only && !host.empty() && !IsLoopback(HostName(host))) {
    throw ApiError(403,
                   "this server answers to the name localhost only; to be reached under another "
                   "one it needs a key (--api-key)",
                   "", "host_not_allowed");
  }
  const std::string origin(request.Header("origin"));
  if (origin.empty()) return {};
  const std::vector<std::string>& origins = rules.origins;
  const bool any = std::find(origins.begin(), origins.end(), "*") != origins.end();
  if (any || std::find(origins.begin(), origins.end(), origin) != origins.end()) {
    return {{"Access-Control-Allow-Origin", any ? "*" : origin},
            {"Access-Control-Expose-Headers",
             "X-Request-Id, X-Deltafin-Ignored, X-Deltafin-Note, Retry-After"},
            {"Vary", "Origin"}};
  }
  const size_t scheme = origin.find("://");
  if (scheme != std::string::npos && origin.substr(scheme + 3) == host) return {};
  throw ApiError(403, "web pages of other origins may not use this server (--cors ORIGIN)", "",
                 "origin_not_allowed");
}

}  // namespace deltafin
