#include "io/quote.h"

#include "base/format.h"

namespace deltafin {
namespace {

void AppendEscaped(char c, std::string& out) {
  if (c >= ' ' && c <= '~') {
    out += c;
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\t') {
    out += "\\t";
  } else {
    out += format("\\x{:02X}", static_cast<unsigned char>(c));
  }
}

}  // namespace

std::string Escape(std::string_view text, size_t max_bytes) {
  std::string out;
  for (const char c : text.substr(0, max_bytes)) AppendEscaped(c, out);
  if (text.size() > max_bytes) out += "...";
  return out;
}

std::string Quote(std::string_view text, size_t max_bytes) {
  std::string out = "\"";
  for (const char c : text.substr(0, max_bytes)) {
    if (c == '"' || c == '\\') out += '\\';
    AppendEscaped(c, out);
  }
  if (text.size() > max_bytes) out += "...";
  return out + '"';
}

}  // namespace deltafin
