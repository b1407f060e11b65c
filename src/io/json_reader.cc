#include "io/json_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/format.h"
#include "io/quote.h"

namespace deltafin {
namespace {

constexpr size_t kMaxDepth = 64;

bool IsDigit(int c) { return c >= '0' && c <= '9'; }

bool IsPlain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
}

void AppendUtf8(uint32_t code, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80u | ((code >> shift) & 0x3fu)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0u | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0u | (code >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xf0u | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

// What may follow a lead byte of UTF-8 (RFC 3629, section 4): no overlong forms, no surrogates,
// nothing above U+10FFFF. All further bytes are 80..BF.
struct Multibyte {
  int num_tail = 0;  // 0: not a lead byte
  int second_min = 0x80;
  int second_max = 0xbf;
};

Multibyte MultibyteOf(int lead) {
  if (lead >= 0xc2 && lead <= 0xdf) return {1};
  if (lead == 0xe0) return {2, 0xa0, 0xbf};
  if (lead == 0xed) return {2, 0x80, 0x9f};
  if (lead >= 0xe1 && lead <= 0xef) return {2};
  if (lead == 0xf0) return {3, 0x90, 0xbf};
  if (lead >= 0xf1 && lead <= 0xf3) return {3};
  if (lead == 0xf4) return {3, 0x80, 0x8f};
  return {};
}

}  // namespace

JsonReader::JsonReader(std::string_view text, std::string name)
    : name_(std::move(name)),
      begin_(text.data()),
      next_(text.data()),
      end_(text.data() + text.size()) {}

JsonReader::JsonReader(Refill refill, std::string name)
    : refill_(std::move(refill)), name_(std::move(name)) {}

void JsonReader::Fail(const std::string& problem, ErrorCode code) const {
  const std::string subject = subject_ ? subject_() + ": " : std::string();
  throw Error(code, format("{}: {}{} (line {}, column {})", name_, subject, problem, line_,
                           position() - line_begin_ + 1));
}

void JsonReader::FailExpecting(const std::string& expected, int got) const {
  const char byte = static_cast<char>(got);
  Fail(format("expected {}, got {}", expected,
              got == kEnd ? "the end of the text" : Quote(std::string_view(&byte, 1))));
}

// --- Bytes ---

int JsonReader::Peek() {
  if (next_ == end_) [[unlikely]] {
    if (!refill_) return kEnd;
    const uint64_t position_now = position();
    const std::string_view chunk = refill_();
    chunk_begin_ = position_now;
    begin_ = next_ = chunk.data();
    end_ = begin_ + chunk.size();
    if (chunk.empty()) return kEnd;
  }
  return static_cast<unsigned char>(*next_);
}

int JsonReader::Take() {
  const int c = Peek();
  if (c != kEnd) ++next_;
  return c;
}

int JsonReader::PeekAfterSpace() {
  while (true) {
    const int c = Peek();
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
    ++next_;
    if (c == '\n') {
      ++line_;
      line_begin_ = position();
    }
  }
}

void JsonReader::Expect(char wanted, const char* where) {
  const int c = PeekAfterSpace();
  if (c != wanted) FailExpecting(format("'{}' {}", wanted, where), c);
  ++next_;
}

void JsonReader::ExpectEnd() {
  const int c = PeekAfterSpace();
  if (c != kEnd) FailExpecting("nothing after the document", c);
}

// --- Containers ---

void JsonReader::Enter(char opener, const char* what) {
  const int c = PeekAfterSpace();
  if (c != opener) FailExpecting(what, c);
  if (is_empty_.size() == kMaxDepth) Fail(format("nested more than {} levels deep", kMaxDepth));
  ++next_;
  is_empty_.push_back(true);
}

void JsonReader::BeginObject() { Enter('{', "an object"); }
void JsonReader::BeginArray() { Enter('[', "an array"); }

bool JsonReader::NextItem(char closer) {
  const bool first = is_empty_.back();
  const int c = PeekAfterSpace();
  if (c == closer) {
    ++next_;
    is_empty_.pop_back();
    return false;
  }
  if (!first) {
    if (c != ',') FailExpecting(format("',' or '{}'", closer), c);
    ++next_;
  }
  is_empty_.back() = false;
  return true;
}

bool JsonReader::NextKey(std::string& key) {
  if (!NextItem('}')) return false;
  ReadString(key);
  Expect(':', "after a key");
  return true;
}

bool JsonReader::NextElement() { return NextItem(']'); }

// --- Strings ---

void JsonReader::ReadString(std::string& value) {
  Expect('"', "at the begin of a string");
  value.clear();
  while (true) {
    int c = Peek();
    const char* plain = next_;
    while (next_ != end_ && IsPlain(*next_)) ++next_;
    value.append(plain, next_);
    if (next_ == end_ && c != kEnd) continue;
    if (c != kEnd) c = static_cast<unsigned char>(*next_);
    if (c == '"') {
      ++next_;
      return;
    }
    if (c == '\\') {
      ++next_;
      AppendEscape(value);
    } else if (c >= 0x80) {
      AppendMultibyte(value);
    } else {
      FailExpecting("a character of a string or '\"'", c);
    }
  }
}

void JsonReader::AppendEscape(std::string& value) {
  static constexpr std::string_view kEscapes = "\"\\/bfnrt";
  static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const int c = Take();
  if (c != 'u') {
    const size_t i = c == kEnd ? std::string_view::npos : kEscapes.find(static_cast<char>(c));
    if (i == std::string_view::npos) FailExpecting("an escape sequence", c);
    value += kMeanings[i];
    return;
  }
  uint32_t code = TakeHex4();
  if (code >= 0xd800 && code <= 0xdbff) {
    const bool is_pair = Take() == '\\' && Take() == 'u';
    const uint32_t low = is_pair ? TakeHex4() : 0;
    if (low < 0xdc00 || low > 0xdfff) Fail("expected the low half of a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xdc00 && code <= 0xdfff) {
    Fail("got the low half of a surrogate pair without the high half");
  }
  AppendUtf8(code, value);
}

uint32_t JsonReader::TakeHex4() {
  uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    const int c = Take();
    uint32_t digit = 0;
    if (IsDigit(c)) {
      digit = static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint32_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint32_t>(c - 'A' + 10);
    } else {
      FailExpecting("four hexadecimal digits", c);
    }
    code = code * 16 + digit;
  }
  return code;
}

void JsonReader::AppendMultibyte(std::string& value) {
  const int lead = Take();
  const Multibyte form = MultibyteOf(lead);
  if (form.num_tail == 0) FailExpecting("UTF-8", lead);
  value += static_cast<char>(lead);
  for (int i = 0; i < form.num_tail; ++i) {
    const int c = Take();
    const int min = i == 0 ? form.second_min : 0x80;
    const int max = i == 0 ? form.second_max : 0xbf;
    if (c < min || c > max) FailExpecting("UTF-8", c);
    value += static_cast<char>(c);
  }
}

// --- Other values ---

uint64_t JsonReader::ReadUint() {
  static constexpr const char* kWanted = "a non-negative integer";
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  int c = PeekAfterSpace();
  if (!IsDigit(c)) FailExpecting(kWanted, c);
  const bool leading_zero = c == '0';
  uint64_t value = 0;
  int num_digits = 0;
  for (; IsDigit(c = Peek()); ++next_, ++num_digits) {
    const auto digit = static_cast<uint64_t>(c - '0');
    if (value > (kMax - digit) / 10) Fail(format("expected {} below 2^64, got more", kWanted));
    value = value * 10 + digit;
  }
  if (leading_zero && num_digits > 1) Fail(format("expected {}, got a leading zero", kWanted));
  if (c == '.' || c == 'e' || c == 'E') {
    Fail(format("expected {}, got a fraction or an exponent", kWanted));
  }
  return value;
}

void JsonReader::SkipNumber() {
  const auto skip_digits = [this] {
    if (!IsDigit(Peek())) FailExpecting("a digit", Peek());
    while (IsDigit(Peek())) ++next_;
  };
  if (Peek() == '-') ++next_;
  if (Peek() == '0') {
    ++next_;
    if (IsDigit(Peek())) Fail("a number must not have leading zeros");
  } else {
    skip_digits();
  }
  if (Peek() == '.') {
    ++next_;
    skip_digits();
  }
  if (Peek() == 'e' || Peek() == 'E') {
    ++next_;
    if (Peek() == '+' || Peek() == '-') ++next_;
    skip_digits();
  }
}

void JsonReader::SkipLiteral(std::string_view literal) {
  for (const char wanted : literal) {
    const int c = Take();
    if (c != wanted) FailExpecting(std::string(literal), c);
  }
}

void JsonReader::SkipObject() {
  std::vector<std::string> keys;
  std::string key;
  BeginObject();
  while (NextKey(key)) {
    keys.push_back(key);
    SkipValue();
  }
  RefuseRepeatedKeys(keys, *this);
}

void JsonReader::SkipValue() {
  const int c = PeekAfterSpace();
  if (c == '{') {
    SkipObject();
  } else if (c == '[') {
    BeginArray();
    while (NextElement()) SkipValue();
  } else if (c == '"') {
    std::string ignored;
    ReadString(ignored);
  } else if (c == 't') {
    SkipLiteral("true");
  } else if (c == 'f') {
    SkipLiteral("false");
  } else if (c == 'n') {
    SkipLiteral("null");
  } else if (c == '-' || IsDigit(c)) {
    SkipNumber();
  } else {
    FailExpecting("a value", c);
  }
}

void RefuseRepeatedKeys(std::vector<std::string>& keys, const JsonReader& reader) {
  std::sort(keys.begin(), keys.end());
  const auto repeated = std::adjacent_find(keys.begin(), keys.end());
  if (repeated != keys.end()) reader.Fail(format("key {} stands twice", Quote(*repeated)));
}

}  // namespace deltafin
