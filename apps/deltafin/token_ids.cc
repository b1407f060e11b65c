#include "token_ids.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "deltafin/error.h"

namespace deltafin {

std::vector<TokenId> ParseTokenIds(const std::string& text) {
  std::vector<TokenId> ids;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    if (std::string_view(" ,\t\r\n[]").find(*p) != std::string_view::npos) {
      ++p;
      continue;
    }
    TokenId id = 0;
    const auto [next, error] = std::from_chars(p, end, id);
    if (error != std::errc() || id < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  "token ids: expected numbers separated by spaces or commas, got \"" +
                      std::string(p, std::min<size_t>(20, static_cast<size_t>(end - p))) + "\"");
    }
    ids.push_back(id);
    p = next;
  }
  return ids;
}

}  // namespace deltafin
