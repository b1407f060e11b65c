// Who may use the server: keys, and what a browser says about the page that asks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace deltafin {

// Takes the same time whatever the two have in common.
bool EqualInConstantTime(std::string_view a, std::string_view b);

struct AccessRules {
  std::string api_key;
  // Requests come from this machine only and need no key, so a web page that the browser was led
  // to under another name must be kept out (DNS rebinding).
  bool loopback_hosts_only = false;
  std::vector<std::string> origins;
};

// The request has the key, or none is needed.
bool HasKey(const AccessRules& rules, const HttpRequest& request);

// Throws ApiError(403) for a host or an origin that is not allowed. The headers that let a page of
// another origin read the answer.
HttpHeaders CheckOrigin(const AccessRules& rules, const HttpRequest& request);

}  // namespace deltafin
