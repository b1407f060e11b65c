#include "markdown_view.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace deltafin {
namespace {

constexpr size_t kLongestHead = 60;  // of a fence with its language

bool IsWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
}
bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n'; }

size_t CountLeading(std::string_view text, char letter) {
  return std::min(text.find_first_not_of(letter), text.size());
}

bool IsRule(std::string_view rest) {
  return rest.size() >= 3 && (rest[0] == '-' || rest[0] == '*' || rest[0] == '_') &&
         CountLeading(rest, rest[0]) == rest.size();
}

}  // namespace

void MarkdownView::Push(std::string_view text) {
  for (char letter : text) {
    if (block_ == Block::kFence) {
      PushFence(letter);
    } else if (at_head_) {
      PushHead(letter);
    } else {
      PushInline(letter);
    }
  }
  write_(out_);
  out_.clear();
}

void MarkdownView::Finish() {
  if (block_ == Block::kFence) {
    const bool closes = head_.find_first_not_of(fence_[0]) == std::string::npos;
    if (!closes) {
      for (char letter : head_) Put(letter);
    }
  } else {
    if (at_head_) TakeHead();
    Ticks();
    Stars('\n');
    if (escaped_) Put('\\');
  }
  head_.clear();
  bold_ = italic_ = quote_ = false;
  code_ = 0;
  block_ = Block::kText;
  at_head_ = true;
  Style();
  write_(out_);
  out_.clear();
}

// ---- code blocks ----

void MarkdownView::PushFence(char letter) {
  if (at_head_) {
    head_ += letter;
    const std::string_view head = head_;
    const std::string_view rest = head.substr(CountLeading(head, ' '));
    const size_t marks = CountLeading(rest, fence_[0]);
    const bool only_marks = marks == rest.size();
    if (only_marks && letter != '\n') return;  // may become the end
    if (letter == '\n' && marks + 1 == rest.size() && marks >= fence_.size()) {
      head_.clear();
      block_ = Block::kText;
      Style();
      return;
    }
    at_head_ = false;
    for (char held : "  " + std::exchange(head_, {})) Put(held);
  } else {
    Put(letter);
  }
  at_head_ = letter == '\n';
}

void MarkdownView::OpenFence(std::string_view rest) {
  fence_ = std::string(rest.substr(0, CountLeading(rest, rest[0])));
  block_ = Block::kFence;
}

// ---- the beginning of a line ----

bool MarkdownView::MayBecomeMark() const {
  const std::string_view head = head_;
  const std::string_view rest = head.substr(CountLeading(head, ' '));
  if (rest.empty()) return true;
  const size_t same = CountLeading(rest, rest[0]);
  switch (rest[0]) {
    case '#':
      return same == rest.size() && same <= 6;
    case '`':
    case '~':
      // The language that follows is not shown.
      return same == rest.size() || (same >= 3 && rest.size() < kLongestHead);
    case '-':
    case '*':
    case '_':
      return same == rest.size();
    case '+':
      return rest.size() == 1;
    default:
      return false;
  }
}

void MarkdownView::PushHead(char letter) {
  if (letter == '\n') {
    const std::string_view head = head_;
    const std::string_view rest = head.substr(CountLeading(head, ' '));
    if (IsRule(rest)) {
      head_.clear();
      for (int i = 0; i < 24; ++i) out_ += "\xe2\x94\x80";  // a line
      EndLine();
      return;
    }
    if (CountLeading(rest, '`') >= 3 || CountLeading(rest, '~') >= 3) {
      OpenFence(rest);
      head_.clear();
      Style();
      return;
    }
    TakeHead();
    PushInline(letter);
    return;
  }
  head_ += letter;
  if (!MayBecomeMark()) TakeHead();
}

void MarkdownView::TakeHead() {
  const std::string head = std::exchange(head_, {});
  const size_t indent = CountLeading(head, ' ');
  at_head_ = false;
  const std::string_view text = head;
  if (TakeMark(text.substr(0, indent), text.substr(indent))) return;
  for (char letter : head) PushInline(letter);
}

bool MarkdownView::TakeMark(std::string_view indent, std::string_view rest) {
  if (rest.size() < 2 && rest != ">") return false;
  const size_t hashes = CountLeading(rest, '#');
  if (hashes > 0 && hashes + 1 == rest.size() && rest.back() == ' ') {
    block_ = Block::kHeading;
    Style();
    return true;
  }
  if ((rest == "- " || rest == "* " || rest == "+ ")) {
    out_ += indent;
    out_ += "\xe2\x80\xa2 ";  // a bullet
    before_ = ' ';
    return true;
  }
  if (rest == ">") {
    quote_ = true;
    Style();
    out_ += "\xe2\x94\x82";  // a bar
    before_ = ' ';
    return true;
  }
  return false;
}

// ---- within a line ----

void MarkdownView::PushInline(char letter) {
  if (letter == '`' && !escaped_) {
    if (stars_ > 0) Stars(letter);
    ++ticks_;
    return;
  }
  Ticks();
  if (escaped_) {
    escaped_ = false;
    const bool is_mark = std::string_view("*_`#").find(letter) != std::string_view::npos;
    if (!is_mark) Put('\\');
    if (letter == '\n') {
      EndLine();
    } else if (is_mark || letter != '\\') {
      Put(letter);
    } else {
      escaped_ = true;
    }
    return;
  }
  if (code_ == 0) {
    if (letter == '*') {
      ++stars_;
      return;
    }
    Stars(letter);
    if (letter == '\\') {
      escaped_ = true;
      return;
    }
  }
  if (letter == '\n') {
    EndLine();
  } else {
    Put(letter);
  }
}

// One opens and closes italics, two bold; where they make no sense they are text.
void MarkdownView::Stars(char next) {
  const size_t count = std::exchange(stars_, 0);
  if (count == 0) return;
  const bool can_close = !IsSpace(before_);
  const bool can_open = !IsSpace(next) && (count > 1 || !IsWord(before_));
  const bool is_bold = count == 2 || count == 3;
  const bool is_italic = count == 1 || count == 3;
  const bool closes = can_close && count <= 3 && (!is_bold || bold_) && (!is_italic || italic_);
  const bool opens = can_open && count <= 3 && (!is_bold || !bold_) && (!is_italic || !italic_);
  if (!closes && !opens) {
    for (size_t i = 0; i < count; ++i) Put('*');
    return;
  }
  if (is_bold) bold_ = !closes;
  if (is_italic) italic_ = !closes;
  Style();
}

void MarkdownView::Ticks() {
  const size_t count = std::exchange(ticks_, 0);
  if (count == 0) return;
  if (code_ == 0) {
    code_ = count;
  } else if (code_ == count) {
    code_ = 0;
  } else {
    for (size_t i = 0; i < count; ++i) Put('`');
  }
  Style();
}

void MarkdownView::EndLine() {
  bold_ = italic_ = quote_ = false;
  code_ = 0;
  block_ = Block::kText;
  Style();
  Put('\n');
  at_head_ = true;
}

void MarkdownView::Put(char letter) {
  out_ += letter;
  before_ = letter;
}

void MarkdownView::Style() {
  std::string style;
  if (bold_ || block_ == Block::kHeading) style += ";1";
  if (italic_) style += ";3";
  if (quote_) style += ";2";
  if (code_ > 0 || block_ == Block::kFence) style += ";36";
  if (style == style_) return;
  style_ = style;
  out_ += "\033[0" + style + "m";
}

}  // namespace deltafin
