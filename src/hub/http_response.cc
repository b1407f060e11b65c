#include "hub/http_response.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "hub/double_text.h"

namespace deltafin {
namespace {

std::string_view Trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

template <class Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return value;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if ('A' <= c && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::optional<ContentRange> ParseContentRange(std::string_view text) {
  if (!text.starts_with("bytes ")) return {};
  text = Trim(text.substr(6));
  const size_t dash = text.find('-');
  const size_t slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || slash < dash) return {};
  const auto first = ParseNumber<uint64_t>(text.substr(0, dash));
  const auto last = ParseNumber<uint64_t>(text.substr(dash + 1, slash - dash - 1));
  if (!first || !last || *last < *first) return {};
  ContentRange range{*first, *last, {}};
  const std::string_view total = text.substr(slash + 1);
  if (total == "*") return range;
  range.total = ParseNumber<uint64_t>(total);
  if (!range.total || *range.total <= *last) return {};
  return range;
}

std::string ParseEtag(std::string_view text) {
  if (text.starts_with("W/")) text.remove_prefix(2);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text = text.substr(1, text.size() - 2);
  }
  return std::string(text);
}

// Seconds, or a date.
std::optional<double> ParseRetryAfter(std::string_view text, int64_t now) {
  double seconds = 0;
  const auto [end, error] = DoubleFromText(text, seconds);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (is_number && std::isfinite(seconds)) return std::max(0.0, seconds);
  const time_t date = ::curl_getdate(std::string(text).c_str(), nullptr);
  if (date < 0) return {};
  return std::max(0.0, static_cast<double>(static_cast<int64_t>(date) - now));
}

}  // namespace

void TakeHeaderLine(std::string_view line, int64_t now, HttpResponse* response) {
  line = Trim(line);
  if (line.starts_with("HTTP/")) {
    *response = {};
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) return;
    response->status = ParseNumber<int>(line.substr(space + 1, 3)).value_or(0);
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string name = Lower(Trim(line.substr(0, colon)));
  const std::string_view value = Trim(line.substr(colon + 1));
  if (name == "content-length") response->content_length = ParseNumber<uint64_t>(value);
  if (name == "content-range") response->content_range = ParseContentRange(value);
  if (name == "location") response->location = value;
  if (name == "etag") response->etag = ParseEtag(value);
  if (name == "x-linked-etag") response->linked_etag = ParseEtag(value);
  if (name == "x-linked-size") response->linked_size = ParseNumber<uint64_t>(value);
  if (name == "x-repo-commit") response->commit = value;
  if (name == "x-error-message") response->error_message = value;
  if (name == "retry-after") response->retry_after_seconds = ParseRetryAfter(value, now);
}

bool LooksLikeSha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace deltafin
