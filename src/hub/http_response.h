// What a server answers, before the body.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deltafin {

// "bytes 0-99/1000"
struct ContentRange {
  uint64_t first = 0;
  uint64_t last = 0;
  std::optional<uint64_t> total;  // "*": not said
};

struct HttpResponse {
  int status = 0;
  std::optional<uint64_t> content_length;
  std::optional<ContentRange> content_range;
  std::string location;
  std::string etag;         // without quotes and W/
  std::string linked_etag;  // X-Linked-ETag: the SHA-256 of a large file
  std::optional<uint64_t> linked_size;
  std::string commit;         // X-Repo-Commit
  std::string error_message;  // X-Error-Message
  std::optional<double> retry_after_seconds;

  bool is_redirect() const {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
  }
};

// Takes one header line, with or without its end. A status line begins a new response (after 100
// Continue, or a proxy's own). `now`: seconds since 1970, for dates. Lines that make no sense are
// as good as absent.
void TakeHeaderLine(std::string_view line, int64_t now, HttpResponse* response);

// True for 64 hexadecimal digits.
bool LooksLikeSha256(std::string_view text);

}  // namespace deltafin
