#include "printable.h"

namespace deltafin {

std::string Printable(std::string_view text) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      result += kReplacement;
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 - U+009F
      result += kReplacement;
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace deltafin
