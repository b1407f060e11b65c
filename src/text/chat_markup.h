// The tags of Kimi K3's chat format (spec 6.4):
//   <|open|>NAME KEY="VALUE" ...<|sep|>   <|close|>NAME<|sep|>   <|end_of_msg|>
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deltafin {

// The special tokens of the format.
inline constexpr std::string_view kOpenMark = "<|open|>";
inline constexpr std::string_view kCloseMark = "<|close|>";
inline constexpr std::string_view kSepMark = "<|sep|>";
inline constexpr std::string_view kEndOfMessage = "<|end_of_msg|>";

// The elements.
inline constexpr std::string_view kMessageTag = "message";
inline constexpr std::string_view kThinkTag = "think";
inline constexpr std::string_view kResponseTag = "response";
inline constexpr std::string_view kToolsTag = "tools";
inline constexpr std::string_view kCallTag = "call";
inline constexpr std::string_view kArgumentTag = "argument";
inline constexpr std::string_view kJsonTag = "json";

// Only & and " are escaped, as &amp; and &quot;.
std::string EscapeAttribute(std::string_view value);
std::string UnescapeAttribute(std::string_view value);

struct ChatTag {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;  // values unescaped

  // "" when the tag does not have it.
  std::string Attribute(std::string_view key) const;
};

enum class TagText : uint8_t {
  kNone,    // is no tag, whatever follows
  kPrefix,  // of a tag
  kWhole,   // a tag (more text may make another one of it)
};

// Reads what stands between <|open|> or <|close|> and <|sep|>: one of the elements above, with
// attributes. `tag`: filled when the text is whole.
TagText ReadChatTag(std::string_view text, ChatTag* tag);

}  // namespace deltafin
