#include "server/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace deltafin {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& text : stops) {
    Stop& stop = stops_.emplace_back();
    stop.text = text;
    stop.failure.assign(text.size() + 1, 0);
    for (size_t i = 1, k = 0; i < text.size(); ++i) {
      while (k > 0 && text[i] != text[k]) k = stop.failure[k];
      if (text[i] == text[k]) ++k;
      stop.failure[i + 1] = k;
    }
  }
}

std::string StopMatcher::Push(std::string_view piece) {
  if (found_) return {};
  if (stops_.empty()) return std::string(piece);
  std::string shown;
  for (const char c : piece) {
    held_ += c;
    size_t found = 0;    // the longest stop string that ends here
    size_t partial = 0;  // the longest that may
    for (Stop& stop : stops_) {
      size_t& k = stop.matched;
      while (k > 0 && stop.text[k] != c) k = stop.failure[k];
      if (stop.text[k] == c) ++k;
      if (k == stop.text.size()) found = std::max(found, k);
      partial = std::max(partial, k);
    }
    if (found > 0) {
      found_ = true;
      shown.append(held_, 0, held_.size() - found);
      held_.clear();
      return shown;
    }
    const size_t free = held_.size() - partial;
    shown.append(held_, 0, free);
    held_.erase(0, free);
  }
  return shown;
}

std::string StopMatcher::Finish() { return found_ ? std::string() : std::exchange(held_, {}); }

}  // namespace deltafin
