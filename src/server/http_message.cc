#include "server/http_message.h"

#include <charconv>

namespace deltafin {

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const char* const begin = text.data() + i + 1;
      const auto [end, error] = std::from_chars(begin, begin + 2, value, 16);
      if (error == std::errc() && end == begin + 2) {
        out += static_cast<char>(value);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

}  // namespace deltafin
