#include "server/chat_prompt.h"

#include <string_view>

namespace deltafin {
namespace {

bool IsControl(const Segment& segment, std::string_view spelling) {
  return segment.specials == Specials::kAllowed && segment.text == spelling;
}

// Whether a message begins at the segment, and whose: <|open|> message role=" WHO ".
std::string_view RoleAt(const std::vector<Segment>& segments, size_t i) {
  const bool is_message = IsControl(segments[i], "<|open|>") && i + 4 < segments.size() &&
                          segments[i + 1].text == "message" && segments[i + 2].text == " role";
  return is_message ? std::string_view(segments[i + 4].text) : std::string_view();
}

}  // namespace

ChatPrompt EncodeChat(const RenderedChat& chat, const Tokenizer& tokenizer) {
  ChatPrompt prompt;
  int64_t system_end = 0;
  int64_t turn_end = 0;
  std::string_view role;
  for (size_t i = 0; i < chat.segments.size(); ++i) {
    const Segment& segment = chat.segments[i];
    if (const std::string_view begun = RoleAt(chat.segments, i); !begun.empty()) role = begun;
    const std::vector<TokenId> more = tokenizer.Encode(segment.text, segment.specials);
    prompt.ids.insert(prompt.ids.end(), more.begin(), more.end());
    if (!IsControl(segment, "<|end_of_msg|>")) continue;
    const auto length = static_cast<int64_t>(prompt.ids.size());
    // What the system says at the end is about the answer, and will stand elsewhere next time.
    if (role != "system") turn_end = length;
    if (role == "system" && turn_end == 0) system_end = length;
  }
  if (system_end > 0) prompt.shared_lengths.push_back(system_end);
  if (turn_end > 0) prompt.shared_lengths.push_back(turn_end);
  return prompt;
}

}  // namespace deltafin
