#include "server/json_acceptor.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "server/utf8_state.h"

namespace deltafin {
namespace {

// A model that must write JSON and has nothing to say writes white space or digits for ever.
constexpr int kMaxSpaces = 100;
constexpr int kMaxIntegerDigits = 20;
constexpr int kMaxFractionDigits = 20;
constexpr int kMaxExponentDigits = 2;  // more does not fit a double
// Of values that no schema describes. Readers of JSON have limits, ours among them.
constexpr int kMaxFreeDepth = 48;
// Alternatives that begin alike; the first ones are kept, each of which can be completed.
constexpr size_t kMaxReadings = 1200;

constexpr std::string_view kNull = "null";
constexpr std::string_view kTrue = "true";
constexpr std::string_view kFalse = "false";

bool IsSpace(uint8_t c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool IsDigit(uint8_t c) { return c >= '0' && c <= '9'; }

std::optional<int> HexValue(uint8_t c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

enum class Kind : uint8_t { kValue, kLiteral, kString, kNumber, kArray, kObject, kKey, kDone };

enum class Place : uint8_t {
  kNone,
  // strings
  kEscape,
  kHex,
  kLowBackslash,
  kLowU,
  kLowHex,
  // numbers
  kMinus,
  kZero,
  kInteger,
  kDot,
  kFraction,
  kE,
  kSign,
  kExponent,
  // arrays and objects
  kBegin,
  kAfterValue,
  kAfterComma,
  kColon,
};

// Lets go of a chain link by link: one that each link's destructor lets go of is as deep a
// recursion as it is long, and a model may open 100,000 arrays.
template <class Link>
void LetGo(std::shared_ptr<const Link> chain, std::shared_ptr<const Link> Link::*rest) {
  while (chain != nullptr && chain.use_count() == 1) {
    chain = std::move(const_cast<Link&>(*chain).*rest);
  }
}

}  // namespace

// The names that an object has so far.
struct JsonAcceptor::UsedKey {
  std::string spelling;
  std::shared_ptr<const UsedKey> next;

  UsedKey(std::string name, std::shared_ptr<const UsedKey> before)
      : spelling(std::move(name)), next(std::move(before)) {}
  ~UsedKey() { LetGo(std::move(next), &UsedKey::next); }
  UsedKey(const UsedKey&) = delete;
  UsedKey& operator=(const UsedKey&) = delete;
};

// The innermost value that is open. What is around it cannot change any more, and is shared: the
// frame that goes on when this one is complete.
struct JsonAcceptor::Frame {
  Kind kind = Kind::kValue;
  Place phase = Place::kNone;
  int node = 0;
  int depth = 0;
  int64_t count = 0;         // items, characters or digits; the position in a literal
  int hex = 0;               // digits of an escape that are still to come
  int code = 0;              // what they say so far
  std::string_view literal;  // owned by the schema, or static
  Utf8State utf8;
  std::string key;  // its spelling so far
  std::shared_ptr<const UsedKey> used;
  std::shared_ptr<const Frame> outer;

  Frame() = default;
  ~Frame() { LetGo(std::move(outer), &Frame::outer); }
  Frame(const Frame&) = default;
  Frame(Frame&&) = default;
  Frame& operator=(const Frame&) = default;
  Frame& operator=(Frame&&) = default;
  bool operator==(const Frame&) const = default;
};

// One byte: from one reading to those that go on.
class JsonAcceptor::Stepper {
 public:
  Stepper(const JsonSchema& schema, bool may_space, std::vector<Frame>* out)
      : schema_(schema), may_space_(may_space), out_(out) {}

  void Step(const Frame& frame, uint8_t c) {
    switch (frame.kind) {
      case Kind::kValue:
        if (IsSpace(c)) return frame.outer ? Space(frame) : void();
        return BeginValue(frame, frame.node, c);
      case Kind::kLiteral:
        return Literal(frame, c);
      case Kind::kString:
        return String(frame, c);
      case Kind::kNumber:
        return Number(frame, c);
      case Kind::kArray:
        return Array(frame, c);
      case Kind::kObject:
        return Object(frame, c);
      case Kind::kKey:
        return Key(frame, c);
      case Kind::kDone:
        return;
    }
  }

 private:
  const SchemaNode& NodeOf(const Frame& frame) const {
    return schema_.nodes[static_cast<size_t>(frame.node)];
  }

  void Add(Frame frame) {
    if (out_->size() >= kMaxReadings) return;
    if (std::find(out_->begin(), out_->end(), frame) == out_->end()) {
      out_->push_back(std::move(frame));
    }
  }

  void Space(const Frame& frame) {
    if (may_space_) Add(frame);
  }

  // The value is complete.
  void Pop(const Frame& frame) {
    if (frame.outer) return Add(*frame.outer);
    Frame done;
    done.kind = Kind::kDone;
    Add(done);
  }

  // ---- the begin of a value ----

  // Every alternative once: they may name each other.
  void BeginValue(const Frame& frame, int node_index, uint8_t c) {
    std::vector<int> open{node_index};
    std::vector<bool> seen(schema_.nodes.size());
    while (!open.empty()) {
      const auto index = static_cast<size_t>(open.back());
      open.pop_back();
      if (seen[index]) continue;
      seen[index] = true;
      const std::vector<int>& any_of = schema_.nodes[index].any_of;
      if (any_of.empty()) BeginOne(frame, static_cast<int>(index), c);
      open.insert(open.end(), any_of.rbegin(), any_of.rend());
    }
  }

  void BeginOne(const Frame& frame, int node_index, uint8_t c) {
    const SchemaNode& node = schema_.nodes[static_cast<size_t>(node_index)];
    if (!node.literals.empty()) {
      for (const std::string& literal : node.literals) BeginLiteral(frame, literal, c);
      return;
    }
    const bool is_free = node_index == SchemaNode::kAnyNode;
    const bool is_deep = is_free && frame.depth >= kMaxFreeDepth;
    const auto begin = [&](Kind kind, Place phase) {
      Frame inner;
      inner.kind = kind;
      inner.phase = phase;
      inner.node = node_index;
      inner.depth = frame.depth + 1;
      inner.outer = frame.outer;
      Add(inner);
    };
    const unsigned types = node.types;
    if (c == 'n' && (types & kJsonNull) != 0) BeginLiteral(frame, kNull, c);
    if (c == 't' && (types & kJsonBoolean) != 0) BeginLiteral(frame, kTrue, c);
    if (c == 'f' && (types & kJsonBoolean) != 0) BeginLiteral(frame, kFalse, c);
    if (c == '"' && (types & kJsonString) != 0) begin(Kind::kString, Place::kNone);
    if (c == '[' && (types & kJsonArray) != 0 && !is_deep) begin(Kind::kArray, Place::kBegin);
    if (c == '{' && (types & kJsonObject) != 0 && !is_deep) begin(Kind::kObject, Place::kBegin);
    if ((types & (kJsonNumber | kJsonInteger)) != 0) {
      if (c == '-') begin(Kind::kNumber, Place::kMinus);
      if (c == '0') begin(Kind::kNumber, Place::kZero);
      if (c >= '1' && c <= '9') begin(Kind::kNumber, Place::kInteger);
    }
  }

  void BeginLiteral(const Frame& frame, std::string_view literal, uint8_t c) {
    Frame inner;
    inner.kind = Kind::kLiteral;
    inner.literal = literal;
    inner.outer = frame.outer;
    Literal(inner, c);
  }

  void Literal(Frame frame, uint8_t c) {
    if (static_cast<uint8_t>(frame.literal[static_cast<size_t>(frame.count)]) != c) return;
    if (++frame.count == static_cast<int64_t>(frame.literal.size())) return Pop(frame);
    Add(std::move(frame));
  }

  // ---- strings ----

  void String(Frame frame, uint8_t c) {
    const SchemaNode& node = NodeOf(frame);
    if (frame.phase != Place::kNone) return Escape(std::move(frame), c);
    if (frame.utf8.left == 0) {
      if (c == '"') return frame.count >= node.min_length ? Pop(frame) : void();
      if (c < 0x20 || frame.count >= node.max_length) return;
      ++frame.count;
      if (c == '\\') {
        frame.phase = Place::kEscape;
        return Add(std::move(frame));
      }
    }
    if (frame.utf8.Push(c)) Add(std::move(frame));
  }

  void Escape(Frame frame, uint8_t c) {
    const auto go = [&](Place phase) {
      frame.phase = phase;
      frame.hex = 4;
      frame.code = 0;
      Add(std::move(frame));
    };
    switch (frame.phase) {
      case Place::kEscape:
        if (c == 'u') return go(Place::kHex);
        if (std::string_view("\"\\/bfnrt").find(static_cast<char>(c)) != std::string_view::npos) {
          go(Place::kNone);
        }
        return;
      case Place::kLowBackslash:
        return c == '\\' ? go(Place::kLowU) : void();
      case Place::kLowU:
        return c == 'u' ? go(Place::kLowHex) : void();
      default:
        return Hex(std::move(frame), c);
    }
  }

  // A high surrogate must be followed by a low one, and a low one follow a high one.
  void Hex(Frame frame, uint8_t c) {
    const std::optional<int> digit = HexValue(c);
    if (!digit) return;
    const bool is_low = frame.phase == Place::kLowHex;
    frame.code = 16 * frame.code + *digit;
    --frame.hex;
    if (frame.hex == 3 && is_low && frame.code != 0xd) return;
    if (frame.hex == 2 && is_low != (frame.code >= 0xdc && frame.code <= 0xdf)) return;
    if (frame.hex == 0) {
      const bool is_high = frame.code >= 0xd800 && frame.code <= 0xdbff;
      frame.phase = is_high ? Place::kLowBackslash : Place::kNone;
    }
    Add(std::move(frame));
  }

  // ---- numbers ----

  static bool NumberIsComplete(Place phase) {
    return phase == Place::kZero || phase == Place::kInteger || phase == Place::kFraction ||
           phase == Place::kExponent;
  }

  void Number(Frame frame, uint8_t c) {
    const std::optional<Place> next = NumberPhase(frame, c);
    if (next) {
      frame.count = *next == frame.phase ? frame.count + 1 : 0;
      frame.phase = *next;
      return Add(std::move(frame));
    }
    // The byte belongs to what is around the number.
    if (NumberIsComplete(frame.phase) && frame.outer) Step(*frame.outer, c);
  }

  std::optional<Place> NumberPhase(const Frame& frame, uint8_t c) const {
    const bool may_be_fraction = (NodeOf(frame).types & kJsonNumber) != 0;
    switch (frame.phase) {
      case Place::kMinus:
        if (c == '0') return Place::kZero;
        if (IsDigit(c)) return Place::kInteger;
        break;
      case Place::kZero:
      case Place::kInteger:
        if (frame.phase == Place::kInteger && IsDigit(c) && frame.count + 1 < kMaxIntegerDigits) {
          return Place::kInteger;
        }
        if (c == '.' && may_be_fraction) return Place::kDot;
        if ((c == 'e' || c == 'E') && may_be_fraction) return Place::kE;
        break;
      case Place::kDot:
        if (IsDigit(c)) return Place::kFraction;
        break;
      case Place::kFraction:
        if (IsDigit(c) && frame.count + 1 < kMaxFractionDigits) return Place::kFraction;
        if (c == 'e' || c == 'E') return Place::kE;
        break;
      case Place::kE:
        if (c == '+' || c == '-') return Place::kSign;
        [[fallthrough]];
      case Place::kSign:
        if (IsDigit(c)) return Place::kExponent;
        break;
      case Place::kExponent:
        if (IsDigit(c) && frame.count + 1 < kMaxExponentDigits) return Place::kExponent;
        break;
      default:
        break;
    }
    return std::nullopt;
  }

  // ---- arrays ----

  void Array(const Frame& frame, uint8_t c) {
    const SchemaNode& node = NodeOf(frame);
    if (IsSpace(c)) return Space(frame);
    if (c == ']' && frame.phase != Place::kAfterComma) {
      return frame.count >= node.min_items ? Pop(frame) : void();
    }
    if (frame.count >= node.max_items) return;
    if (frame.phase == Place::kAfterValue) {
      if (c != ',') return;
      Frame next = frame;
      next.phase = Place::kAfterComma;
      return Add(std::move(next));
    }
    auto after = std::make_shared<Frame>(frame);
    after->phase = Place::kAfterValue;
    ++after->count;
    const auto position = static_cast<size_t>(frame.count);
    const int item = position < node.first_items.size() ? node.first_items[position] : node.items;
    Frame value;
    value.depth = frame.depth;
    value.outer = std::move(after);
    BeginValue(value, item, c);
  }

  // ---- objects ----

  static bool IsUsed(const Frame& frame, std::string_view spelling) {
    for (const UsedKey* key = frame.used.get(); key != nullptr; key = key->next.get()) {
      if (key->spelling == spelling) return true;
    }
    return false;
  }

  bool HasMoreKeys(const Frame& frame) const {
    const SchemaNode& node = NodeOf(frame);
    return node.additional != SchemaNode::kNothing ||
           std::any_of(node.properties.begin(), node.properties.end(),
                       [&](const SchemaProperty& p) { return !IsUsed(frame, p.spelling); });
  }

  bool MayEnd(const Frame& frame) const {
    const SchemaNode& node = NodeOf(frame);
    return std::all_of(
        node.properties.begin(), node.properties.end(),
        [&](const SchemaProperty& p) { return !p.required || IsUsed(frame, p.spelling); });
  }

  void Object(const Frame& frame, uint8_t c) {
    if (IsSpace(c)) return Space(frame);
    Frame next = frame;
    switch (frame.phase) {
      case Place::kBegin:
      case Place::kAfterValue:
        if (c == '}') return MayEnd(frame) ? Pop(frame) : void();
        if (frame.phase == Place::kAfterValue) {
          if (c != ',' || !HasMoreKeys(frame)) return;
          next.phase = Place::kAfterComma;
          return Add(std::move(next));
        }
        [[fallthrough]];
      case Place::kAfterComma:
        if (c != '"' || !HasMoreKeys(frame)) return;
        next.kind = Kind::kKey;
        next.key.clear();
        return Add(std::move(next));
      case Place::kColon:
        return c == ':' ? BeginProperty(std::move(next)) : void();
      default:
        return;
    }
  }

  // A key is spelled in one way only, so that two spellings cannot give the same name twice.
  void Key(Frame frame, uint8_t c) {
    const SchemaNode& node = NodeOf(frame);
    const bool is_open = node.additional != SchemaNode::kNothing;
    if (c == '"' && frame.utf8.left == 0 && KeyIsWhole(frame)) {
      frame.kind = Kind::kObject;
      frame.phase = Place::kColon;
      return Add(std::move(frame));
    }
    frame.key += static_cast<char>(c);
    const bool begins_listed =
        std::any_of(node.properties.begin(), node.properties.end(), [&](const SchemaProperty& p) {
          return p.spelling.starts_with(frame.key) && !IsUsed(frame, p.spelling);
        });
    const bool is_plain =
        c >= 0x20 && c != '"' && c != '\\' && is_open && frame.key.find('\\') == std::string::npos;
    if (!begins_listed && !is_plain) return;
    if (frame.utf8.Push(c)) Add(std::move(frame));
  }

  bool KeyIsWhole(const Frame& frame) const {
    if (IsUsed(frame, frame.key)) return false;
    const SchemaNode& node = NodeOf(frame);
    const bool is_listed =
        std::any_of(node.properties.begin(), node.properties.end(),
                    [&](const SchemaProperty& p) { return p.spelling == frame.key; });
    return is_listed ||
           (node.additional != SchemaNode::kNothing && frame.key.find('\\') == std::string::npos);
  }

  void BeginProperty(Frame object) {
    const SchemaNode& node = NodeOf(object);
    int value_node = node.additional;
    for (const SchemaProperty& property : node.properties) {
      if (property.spelling == object.key) value_node = property.node;
    }
    object.used = std::make_shared<UsedKey>(std::move(object.key), object.used);
    object.key.clear();
    object.phase = Place::kAfterValue;
    Frame value;
    value.node = value_node;
    value.depth = object.depth;
    value.outer = std::make_shared<Frame>(std::move(object));
    Add(std::move(value));
  }

  const JsonSchema& schema_;
  const bool may_space_;
  std::vector<Frame>* out_;
};

JsonAcceptor::JsonAcceptor(std::shared_ptr<const JsonSchema> schema, int node)
    : schema_(std::move(schema)) {
  Frame frame;
  frame.node = node;
  readings_ = std::make_shared<const std::vector<Frame>>(1, std::move(frame));
}

bool JsonAcceptor::Push(char byte) {
  const auto c = static_cast<uint8_t>(byte);
  num_spaces_ = IsSpace(c) ? num_spaces_ + 1 : 0;
  std::vector<Frame> next;
  Stepper stepper(*schema_, num_spaces_ <= kMaxSpaces, &next);
  for (const Frame& frame : *readings_) stepper.Step(frame, c);
  readings_ = std::make_shared<const std::vector<Frame>>(std::move(next));
  return !readings_->empty();
}

bool JsonAcceptor::complete() const {
  return std::any_of(readings_->begin(), readings_->end(), [](const Frame& frame) {
    const bool is_number = frame.kind == Kind::kNumber && !frame.outer &&
                           (frame.phase == Place::kZero || frame.phase == Place::kInteger ||
                            frame.phase == Place::kFraction || frame.phase == Place::kExponent);
    return frame.kind == Kind::kDone || is_number;
  });
}

}  // namespace deltafin
