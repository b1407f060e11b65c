// Markdown on a terminal while it is written: headings, bold, italics, code, lists, quotes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace deltafin {

// Shows every character as soon as its meaning is known: at once within a line, but for what may
// become a mark. Whatever is no mark comes out as it is. Not thread-safe.
class MarkdownView {
 public:
  using Write = std::function<void(std::string_view)>;
  explicit MarkdownView(Write write) : write_(std::move(write)) {}

  // UTF-8 without control characters (printable.h).
  void Push(std::string_view text);
  // Shows what was held back, and ends all styles.
  void Finish();

 private:
  enum class Block : uint8_t { kText, kHeading, kFence };

  void PushFence(char letter);
  void PushHead(char letter);
  void PushInline(char letter);
  // Whether the beginning of a line may still become a mark of a block.
  bool MayBecomeMark() const;
  // Shows the mark that head_ is, if it is one, and clears it; else passes head_ on as text.
  void TakeHead();
  bool TakeMark(std::string_view indent, std::string_view rest);
  void OpenFence(std::string_view rest);
  void Stars(char next);
  void Ticks();
  void EndLine();
  void Put(char letter);
  void Style();

  Write write_;
  std::string out_;   // of this Push
  std::string head_;  // beginning of a line, while it may become a mark
  bool at_head_ = true;
  Block block_ = Block::kText;
  std::string fence_;  // the marks that close it
  bool bold_ = false;
  bool italic_ = false;
  bool quote_ = false;
  size_t code_ = 0;   // backticks that opened it
  size_t stars_ = 0;  // that came and have no meaning yet
  size_t ticks_ = 0;
  bool escaped_ = false;  // a backslash came
  char before_ = '\n';    // the last character that was shown
  std::string style_;     // that the terminal has
};

}  // namespace deltafin
