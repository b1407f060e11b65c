#include "answer_view.h"

#include <cstdio>

#include "../overwritten_line.h"
#include "printable.h"

namespace deltafin {
namespace {

constexpr double kDraftSeconds = 0.1;
constexpr const char* kDim = "\033[2m";
constexpr const char* kReset = "\033[0m";

std::string Fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

}  // namespace

AnswerView::AnswerView(const ViewOptions& options)
    : options_(options), markdown_([this](std::string_view text) { Write(text); }) {}

double AnswerView::Seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void AnswerView::Write(std::string_view text) {
  if (text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  // Styles end with a letter, which is no line end either.
  last_ = text.back();
}

void AnswerView::Draft(const std::string& line) {
  if (!options_.terminal) return;
  const auto now = std::chrono::steady_clock::now();
  if (last_draft_ && std::chrono::duration<double>(now - *last_draft_).count() < kDraftSeconds) {
    return;
  }
  last_draft_ = now;
  draft_is_shown_ = true;
  std::fputs(kBeginOverwrite, stdout);
  if (options_.styled) std::fputs(kDim, stdout);
  std::fputs(line.c_str(), stdout);
  if (options_.styled) std::fputs(kReset, stdout);
  std::fputs(kEndOverwrite, stdout);
  std::fflush(stdout);
}

void AnswerView::ClearDraft() {
  if (draft_is_shown_) std::fputs("\r\033[K", stdout);
  draft_is_shown_ = false;
}

void AnswerView::PromptProgress(int64_t layer, int64_t num_layers, int64_t num_prompt_tokens) {
  Draft("reading " + std::to_string(num_prompt_tokens) + " tokens: layer " +
        std::to_string(layer + 1) + " of " + std::to_string(num_layers) + ", " + Fixed(Seconds()) +
        " s");
}

void AnswerView::Push(const ChatDelta& delta) {
  if (!delta.reasoning.empty()) Thinking(delta.reasoning);
  std::string content = delta.content;
  for (const ToolCall& call : delta.finished_calls) {
    content += "[call " + call.name + " " + call.arguments + "]";
  }
  if (!content.empty()) Answer(content);
}

void AnswerView::Thinking(const std::string& text) {
  if (!thinking_since_) {
    ClearDraft();
    thinking_since_ = Seconds();
    if (options_.show_thinking) {
      if (options_.terminal) {
        Write(options_.styled ? kDim : "");
      } else {
        std::fputs("thinking: ", stderr);
      }
    }
  }
  ++thinking_pieces_;
  if (!options_.show_thinking) {
    Draft("thinking, " + std::to_string(thinking_pieces_) + " tokens, " +
          Fixed(Seconds() - *thinking_since_) + " s (/think shows it)");
  } else if (options_.terminal) {
    Write(Printable(text));
  } else {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }
}

void AnswerView::EndThinking() {
  ClearDraft();
  if (!thinking_since_) return;
  const double seconds = Seconds() - *thinking_since_;
  thinking_since_.reset();
  if (!options_.terminal) {
    if (options_.show_thinking) std::fputs("\n", stderr);
    return;
  }
  if (options_.show_thinking) {
    if (last_ != '\n') Write("\n");
    Write(options_.styled ? "\033[0m\n" : "\n");
    return;
  }
  if (options_.styled) Write(kDim);
  Write("thought for " + Fixed(seconds) + " s, " + std::to_string(thinking_pieces_) + " tokens");
  Write(options_.styled ? "\033[0m\n" : "\n");
}

void AnswerView::Answer(const std::string& text) {
  EndThinking();
  std::string_view shown = text;
  if (!answer_has_begun_) {
    const size_t begin = shown.find_first_not_of('\n');
    if (begin == std::string_view::npos) return;
    shown.remove_prefix(begin);
    answer_has_begun_ = true;
  }
  if (!options_.terminal) {
    Write(shown);
  } else if (options_.styled) {
    markdown_.Push(Printable(shown));
  } else {
    Write(Printable(shown));
  }
}

void AnswerView::Finish() {
  EndThinking();
  if (options_.styled) markdown_.Finish();
  if (last_ != '\n') Write("\n");
}

void ShowThought(const std::string& reasoning, const ViewOptions& options) {
  if (reasoning.empty()) return;
  const std::string text = options.terminal ? Printable(reasoning) : reasoning;
  std::FILE* const out = options.terminal ? stdout : stderr;
  if (options.styled) std::fputs(kDim, out);
  std::fputs(text.c_str(), out);
  if (options.styled) std::fputs(kReset, out);
  std::fputs("\n", out);
  std::fflush(out);
}

}  // namespace deltafin
