#include "server/answer_shape.h"

#include <algorithm>
#include <utility>

namespace deltafin {
namespace {

std::u16string Marked(int mark, std::string_view text) {
  std::u16string symbols(1, static_cast<char16_t>(mark));
  for (const char c : text) symbols += static_cast<char16_t>(static_cast<unsigned char>(c));
  return symbols;
}

// A whole tag: <|open|> text <|sep|>, or <|close|> text <|sep|>.
std::u16string TagText(int mark, std::string_view text) {
  std::u16string symbols = Marked(mark, text);
  symbols.push_back(static_cast<char16_t>(kSepSymbol));
  return symbols;
}

// As the prompt spells attributes.
std::string Attribute(std::string_view key, std::string_view value) {
  std::string text(1, ' ');
  text.append(key).append("=\"");
  for (const char c : value) {
    if (c == '&') {
      text += "&amp;";
    } else if (c == '"') {
      text += "&quot;";
    } else {
      text += c;
    }
  }
  return text += '"';
}

std::string Unescaped(std::string_view value) {
  std::string text;
  while (!value.empty()) {
    if (value.starts_with("&amp;")) {
      text += '&';
      value.remove_prefix(5);
    } else if (value.starts_with("&quot;")) {
      text += '"';
      value.remove_prefix(6);
    } else {
      text += value.front();
      value.remove_prefix(1);
    }
  }
  return text;
}

struct TypeName {
  unsigned type;
  const char* name;
  std::string_view first;  // bytes with which such a JSON value begins
};
constexpr TypeName kTypeNames[] = {
    {kJsonString, "string", "\""},   {kJsonNumber | kJsonInteger, "number", "-0123456789"},
    {kJsonBoolean, "boolean", "tf"}, {kJsonObject, "object", "{"},
    {kJsonArray, "array", "["},      {kJsonNull, "null", "n"},
};

std::string_view FirstBytes(std::string_view type) {
  for (const TypeName& name : kTypeNames) {
    if (name.name == type) return name.first;
  }
  return {};
}

}  // namespace

AnswerShape::AnswerShape(std::shared_ptr<const ShapeOptions> options)
    : options_(std::move(options)), place_(options_->thinking ? Place::kThink : Place::kResponse) {
  if (options_->content) json_.emplace(options_->content);
}

bool AnswerShape::takes_any_text() const {
  if (!tag_.empty()) return false;
  return place_ == Place::kThink || (place_ == Place::kResponse && !json_) ||
         (place_ == Place::kText && is_free_text_);
}

bool AnswerShape::Push(int symbol) {
  if (tag_.empty() && symbol < 256) return PushText(symbol);
  if (tag_.empty() && symbol == kEndSymbol) {
    const std::vector<Tag> tags = Tags();
    const bool may_end = std::any_of(tags.begin(), tags.end(), [](const Tag& tag) {
      return tag.next == Place::kDone && tag.text[0] == kEndSymbol;
    });
    if (may_end) place_ = Place::kDone;
    return may_end;
  }
  tag_ += static_cast<char16_t>(symbol);
  bool fits = false;
  for (const Tag& tag : Tags()) {
    if (!tag.text.starts_with(tag_)) continue;
    if (tag.text.size() == tag_.size()) {
      Enter(tag);
      return true;
    }
    fits = true;
  }
  return fits;
}

// The tags that may come here.
std::vector<AnswerShape::Tag> AnswerShape::Tags() const {
  std::vector<Tag> tags;
  const auto add = [&](std::u16string text, Place next) {
    tags.push_back({std::move(text), next, -1, {}, {}});
  };
  const bool may_call = num_calls_ < options_->max_calls && !options_->tools.empty();
  switch (place_) {
    case Place::kThink:
      add(TagText(kCloseSymbol, "think"), Place::kAfterThink);
      break;
    case Place::kAfterThink:
      add(TagText(kOpenSymbol, "response"), Place::kResponse);
      break;
    case Place::kResponse:
      // In place of JSON there can be calls.
      if (!json_ || JsonIsComplete() || (!json_has_begun_ && may_call)) {
        add(TagText(kCloseSymbol, "response"), Place::kAfterResponse);
      }
      break;
    case Place::kAfterResponse:
      if (may_call) add(TagText(kOpenSymbol, "tools"), Place::kTools);
      if (options_->min_calls == 0 && (!json_ || json_has_begun_)) {
        add(TagText(kCloseSymbol, "message"), Place::kEnd);
        add({static_cast<char16_t>(kEndSymbol)}, Place::kDone);
      }
      break;
    case Place::kTools:
      if (may_call) {
        for (size_t i = 0; i < options_->tools.size(); ++i) {
          std::string call = "call";
          call.append(Attribute("tool", options_->tools[i].name));
          call.append(Attribute("index", std::to_string(num_calls_ + 1)));
          add(TagText(kOpenSymbol, call), Place::kCall);
          tags.back().tool = static_cast<int>(i);
        }
      }
      if (num_calls_ > 0 && num_calls_ >= options_->min_calls) {
        add(TagText(kCloseSymbol, "tools"), Place::kAfterTools);
      }
      break;
    case Place::kCall:
      AddArgumentTags(&tags);
      if (MayCloseCall()) add(TagText(kCloseSymbol, "call"), Place::kTools);
      break;
    case Place::kAfterKey:
      for (const TypeName& type : kTypeNames) {
        if ((ArgumentTypes(ValueNode(key_)) & type.type) == 0) continue;
        add(TagText('"', Attribute("type", type.name)), Place::kText);
        tags.back().key = key_;
        tags.back().type = type.name;
      }
      break;
    case Place::kText:
    case Place::kJson:
      if (MayCloseValue()) add(TagText(kCloseSymbol, "argument"), Place::kCall);
      break;
    case Place::kAfterTools:
      add(TagText(kCloseSymbol, "message"), Place::kEnd);
      add({static_cast<char16_t>(kEndSymbol)}, Place::kDone);
      break;
    case Place::kEnd:
      add({static_cast<char16_t>(kEndSymbol)}, Place::kDone);
      break;
    case Place::kKey:
    case Place::kDone:
      break;
  }
  return tags;
}

void AnswerShape::AddArgumentTags(std::vector<Tag>* tags) const {
  const SchemaNode* node = ArgumentsNode();
  if (node != nullptr) {
    for (const SchemaProperty& property : node->properties) {
      if (keys_.count(property.name) > 0) continue;
      for (const TypeName& type : kTypeNames) {
        if ((ArgumentTypes(property.node) & type.type) == 0) continue;
        std::string text = "argument";
        text.append(Attribute("key", property.name)).append(Attribute("type", type.name));
        tags->push_back(
            {TagText(kOpenSymbol, text), Place::kText, tool_, property.name, type.name});
      }
    }
  }
  if (node == nullptr || node->additional != SchemaNode::kNothing) {
    tags->push_back({Marked(kOpenSymbol, "argument key=\""), Place::kKey, tool_, {}, {}});
  }
}

// The arguments' schema as far as it is one object with properties.
const SchemaNode* AnswerShape::ArgumentsNode() const {
  const std::shared_ptr<const JsonSchema>& schema =
      options_->tools[static_cast<size_t>(tool_)].arguments;
  if (!schema) return nullptr;
  int index = schema->root;
  for (size_t i = 0; i < schema->nodes.size(); ++i) {
    const SchemaNode& node = schema->nodes[static_cast<size_t>(index)];
    if (node.any_of.size() != 1) return node.any_of.empty() ? &node : nullptr;
    index = node.any_of.front();
  }
  return nullptr;
}

int AnswerShape::ValueNode(std::string_view key) const {
  const SchemaNode* node = ArgumentsNode();
  if (node == nullptr) return SchemaNode::kAnyNode;
  for (const SchemaProperty& property : node->properties) {
    if (property.name == key) return property.node;
  }
  return node->additional;
}

// The alternatives of an argument that have none of their own; nothing: any value. They may
// name each other.
std::optional<std::vector<const SchemaNode*>> AnswerShape::Alternatives(int index) const {
  const std::shared_ptr<const JsonSchema>& schema =
      options_->tools[static_cast<size_t>(tool_)].arguments;
  if (!schema) return std::nullopt;
  std::vector<const SchemaNode*> found;
  std::vector<int> open{index};
  std::set<int> seen;
  while (!open.empty()) {
    const int next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    const SchemaNode& node = schema->nodes[static_cast<size_t>(next)];
    open.insert(open.end(), node.any_of.begin(), node.any_of.end());
    if (node.any_of.empty()) found.push_back(&node);
  }
  return found;
}

unsigned AnswerShape::ArgumentTypes(int index) const {
  const auto alternatives = Alternatives(index);
  if (!alternatives) return kJsonAny;
  unsigned types = 0;
  for (const SchemaNode* node : *alternatives) {
    if (node->literals.empty()) types |= node->types;
    for (const std::string& literal : node->literals) {
      for (const TypeName& type : kTypeNames) {
        if (type.first.find(literal[0]) != std::string_view::npos) types |= type.type;
      }
    }
  }
  return types;
}

AnswerShape::TextRules AnswerShape::TextRulesOf(int index) const {
  TextRules rules;
  const auto alternatives = Alternatives(index);
  if (!alternatives) return {{}, {LengthRange()}};
  for (const SchemaNode* node : *alternatives) {
    if (node->literals.empty() && (node->types & kJsonString) != 0) {
      rules.lengths.push_back({node->min_length, node->max_length});
    }
    for (const std::string& literal : node->literals) {
      if (literal[0] != '"') continue;
      rules.choices.push_back(ParseJson(literal, "a value of enum").get<std::string>());
    }
  }
  return rules;
}

bool AnswerShape::JsonIsComplete() const { return json_ && json_has_begun_ && json_->complete(); }

bool AnswerShape::MayCloseValue() const {
  if (place_ == Place::kJson) return JsonIsComplete();
  if (is_free_text_) return true;
  const auto has_length = [&](const LengthRange& length) {
    return num_characters_ >= length.min && num_characters_ <= length.max;
  };
  return std::find(rules_.choices.begin(), rules_.choices.end(), text_) != rules_.choices.end() ||
         (utf8_.left == 0 && std::any_of(rules_.lengths.begin(), rules_.lengths.end(), has_length));
}

bool AnswerShape::MayCloseCall() const {
  const SchemaNode* node = ArgumentsNode();
  return node == nullptr || std::all_of(node->properties.begin(), node->properties.end(),
                                        [&](const SchemaProperty& property) {
                                          return !property.required ||
                                                 keys_.count(property.name) > 0;
                                        });
}

bool AnswerShape::PushText(int symbol) {
  const char c = static_cast<char>(symbol);
  switch (place_) {
    case Place::kThink:
      return true;
    case Place::kResponse:
      if (!json_) return true;
      json_has_begun_ = true;
      return json_->Push(c);
    case Place::kText:
    case Place::kJson:
      return PushValueText(c);
    case Place::kKey:
      if (c != '"') {
        key_ += c;
        return static_cast<unsigned char>(c) >= 0x20;
      }
      key_ = Unescaped(key_);
      if (key_.empty() || keys_.count(key_) > 0) return false;
      place_ = Place::kAfterKey;
      tag_ = u'"';
      return true;
    default:
      return false;
  }
}

bool AnswerShape::PushValueText(char c) {
  if (place_ == Place::kJson) {
    if (!json_has_begun_ && FirstBytes(type_).find(c) == std::string_view::npos) return false;
    json_has_begun_ = true;
    return json_->Push(c);
  }
  return is_free_text_ || PushString(c);
}

// Bytes that are no characters would be shown as characters that nobody counted.
bool AnswerShape::PushString(char c) {
  if (!rules_.choices.empty()) text_ += c;
  if (utf8_.left == 0) ++num_characters_;
  if (!utf8_.Push(static_cast<uint8_t>(c))) return false;
  return std::any_of(rules_.choices.begin(), rules_.choices.end(),
                     [&](const std::string& choice) { return choice.starts_with(text_); }) ||
         std::any_of(rules_.lengths.begin(), rules_.lengths.end(),
                     [&](const LengthRange& length) { return num_characters_ <= length.max; });
}

void AnswerShape::Enter(const Tag& tag) {
  tag_.clear();
  const Place before = std::exchange(place_, tag.next);
  switch (tag.next) {
    case Place::kCall:
      if (before == Place::kTools) {
        tool_ = tag.tool;
        keys_.clear();
      }
      return;
    case Place::kTools:
      if (before == Place::kCall) ++num_calls_;
      return;
    case Place::kKey:
      key_.clear();
      return;
    case Place::kText:
      keys_.insert(tag.key);
      key_ = tag.key;
      BeginValue(tag.type);
      return;
    default:
      return;
  }
}

void AnswerShape::BeginValue(const std::string& type) {
  const std::shared_ptr<const JsonSchema>& schema =
      options_->tools[static_cast<size_t>(tool_)].arguments;
  const int value = ValueNode(key_);
  type_ = type;
  if (type == "string") {
    rules_ = TextRulesOf(value);
    is_free_text_ = std::any_of(
        rules_.lengths.begin(), rules_.lengths.end(),
        [](const LengthRange& length) { return length.min == 0 && length.max == INT64_MAX; });
    text_.clear();
    num_characters_ = 0;
    utf8_ = {};
    return;
  }
  place_ = Place::kJson;
  static const std::shared_ptr<const JsonSchema> any = CompileSchema(Json(true), "any");
  json_.emplace(schema ? schema : any, value);
  json_has_begun_ = false;
}

TokenShape::TokenShape(const Tokenizer& tokenizer, std::shared_ptr<const ShapeOptions> options)
    : tokenizer_(tokenizer),
      open_(tokenizer.SpecialId("<|open|>")),
      close_(tokenizer.SpecialId("<|close|>")),
      sep_(tokenizer.SpecialId("<|sep|>")),
      end_(tokenizer.SpecialId("<|end_of_msg|>")),
      shape_(std::move(options)) {}

bool TokenShape::Allows(TokenId id) const {
  if (!tokenizer_.IsSpecial(id) && shape_.takes_any_text()) return true;
  if (may_begin_.empty()) {
    for (int symbol = 0; symbol < kNumSymbols; ++symbol) {
      AnswerShape next = shape_;
      may_begin_.push_back(next.Push(symbol));
    }
  }
  if (!may_begin_[static_cast<size_t>(FirstSymbol(id))]) return false;
  AnswerShape next = shape_;
  return Push(id, &next);
}

void TokenShape::Accept(TokenId id) {
  (void)Push(id, &shape_);
  may_begin_.clear();
}

int TokenShape::FirstSymbol(TokenId id) const {
  if (id == open_) return kOpenSymbol;
  if (id == close_) return kCloseSymbol;
  if (id == sep_) return kSepSymbol;
  if (id == end_) return kEndSymbol;
  const std::string_view bytes = tokenizer_.Bytes(id);
  if (tokenizer_.IsSpecial(id) || bytes.empty()) return kOtherSymbol;
  return static_cast<unsigned char>(bytes.front());
}

bool TokenShape::Push(TokenId id, AnswerShape* shape) const {
  if (tokenizer_.IsSpecial(id)) return shape->Push(FirstSymbol(id));
  const std::string_view bytes = tokenizer_.Bytes(id);
  return !bytes.empty() && std::all_of(bytes.begin(), bytes.end(), [&](char c) {
    return shape->Push(static_cast<unsigned char>(c));
  });
}

}  // namespace deltafin
