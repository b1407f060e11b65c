// Shows an answer while it comes: thinking dimmed or folded, the answer as light Markdown.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "deltafin/chat.h"
#include "markdown_view.h"

namespace deltafin {

struct ViewOptions {
  bool terminal = false;  // lines may be drawn over
  bool styled = false;    // colours and Markdown
  bool show_thinking = true;
};

// One for each turn. Without a terminal the answer is all that goes to stdout; thinking goes to
// stderr, as it is.
class AnswerView {
 public:
  explicit AnswerView(const ViewOptions& options);

  // While the prompt is computed: a line that is drawn over.
  void PromptProgress(int64_t layer, int64_t num_layers, int64_t num_prompt_tokens);
  void Push(const ChatDelta& delta);
  void Finish();

 private:
  void Thinking(const std::string& text);
  void EndThinking();
  void Answer(const std::string& text);
  // A line that the next one, or the answer, takes the place of; not more than ten a second.
  void Draft(const std::string& line);
  void ClearDraft();
  void Write(std::string_view text);
  double Seconds() const;

  const ViewOptions options_;
  MarkdownView markdown_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<std::chrono::steady_clock::time_point> last_draft_;
  bool draft_is_shown_ = false;
  std::optional<double> thinking_since_;
  int64_t thinking_pieces_ = 0;
  bool answer_has_begun_ = false;
  char last_ = '\n';  // that was written
};

// A finished thought, dimmed: /think after an answer.
void ShowThought(const std::string& reasoning, const ViewOptions& options);

}  // namespace deltafin
