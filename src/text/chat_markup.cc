#include "text/chat_markup.h"

#include <algorithm>
#include <array>

namespace deltafin {
namespace {

constexpr std::array kTags = {kMessageTag, kThinkTag,    kResponseTag, kToolsTag,
                              kCallTag,    kArgumentTag, kJsonTag};

// A tag holds at most a tool's name or an argument's key. Longer text after <|open|> is no tag, and
// is not held back any longer.
constexpr size_t kMaxTagBytes = 4096;

}  // namespace

std::string EscapeAttribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string UnescapeAttribute(std::string_view value) {
  std::string out;
  while (!value.empty()) {
    if (value.starts_with("&amp;")) {
      out += '&';
      value.remove_prefix(5);
    } else if (value.starts_with("&quot;")) {
      out += '"';
      value.remove_prefix(6);
    } else {
      out += value.front();
      value.remove_prefix(1);
    }
  }
  return out;
}

std::string ChatTag::Attribute(std::string_view key) const {
  for (const auto& [name_of, value] : attributes) {
    if (name_of == key) return value;
  }
  return {};
}

TagText ReadChatTag(std::string_view text, ChatTag* tag) {
  if (text.size() > kMaxTagBytes) return TagText::kNone;
  const size_t name_end = std::min(text.find(' '), text.size());
  *tag = {std::string(text.substr(0, name_end)), {}};
  if (std::find(kTags.begin(), kTags.end(), tag->name) == kTags.end()) {
    const bool is_prefix =
        name_end == text.size() &&
        std::any_of(kTags.begin(), kTags.end(), [&](auto name) { return name.starts_with(text); });
    return is_prefix ? TagText::kPrefix : TagText::kNone;
  }
  text.remove_prefix(name_end);
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return TagText::kWhole;

    const size_t key_end = text.find_first_of("= \"");
    if (key_end == std::string_view::npos || text.substr(key_end) == "=") return TagText::kPrefix;
    if (key_end == 0 || !text.substr(key_end).starts_with("=\"")) return TagText::kNone;
    const size_t value_begin = key_end + 2;
    const size_t value_end = text.find('"', value_begin);
    if (value_end == std::string_view::npos) return TagText::kPrefix;
    tag->attributes.emplace_back(
        text.substr(0, key_end),
        UnescapeAttribute(text.substr(value_begin, value_end - value_begin)));
    text.remove_prefix(value_end + 1);
    if (!text.empty() && text.front() != ' ') return TagText::kNone;
  }
}

}  // namespace deltafin
