// Which tokens an answer may go on with, when the request says what it must look like: JSON of a
// schema, or calls of its tools. The tags are those of docs/chat-format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/tokenizer.h"
#include "server/json_acceptor.h"
#include "server/utf8_state.h"

namespace deltafin {

struct ToolShape {
  std::string name;
  // Of the object of arguments; null: any names and values.
  std::shared_ptr<const JsonSchema> arguments;
};

struct ShapeOptions {
  bool thinking = true;                       // the prompt ends inside <think>
  std::shared_ptr<const JsonSchema> content;  // of the answer's text; null: any text
  std::vector<ToolShape> tools;               // that may be called
  int min_calls = 0;
  int max_calls = 0;
};

// One character of an answer: a byte, or one of the format's control tokens.
enum ShapeSymbol : int {
  kOpenSymbol = 256,
  kCloseSymbol,
  kSepSymbol,
  kEndSymbol,    // end of message
  kOtherSymbol,  // any other special token
  kNumSymbols,
};

// Reads an answer symbol by symbol. A value: copies are cheap and independent.
class AnswerShape {
 public:
  explicit AnswerShape(std::shared_ptr<const ShapeOptions> options);

  // False when no such answer begins like that; nothing may be pushed afterwards.
  bool Push(int symbol);
  // Every ordinary byte may come next, however many.
  bool takes_any_text() const;

 private:
  enum class Place : uint8_t {
    kThink,
    kAfterThink,
    kResponse,
    kAfterResponse,
    kTools,
    kCall,
    kKey,  // of an argument, where any may be
    kAfterKey,
    kText,  // a value that is a string
    kJson,  // any other value
    kAfterTools,
    kEnd,  // nothing but the end of the message
    kDone,
  };
  // A tag that may stand here (or what is left of it), and where it leads.
  struct Tag {
    std::u16string text;
    Place next;
    int tool = -1;
    std::string key;
    std::string type;
  };

  // How many characters a string may have.
  struct LengthRange {
    int64_t min = 0;
    int64_t max = INT64_MAX;
  };
  // What a string may be: one of these, or any of such a length.
  struct TextRules {
    std::vector<std::string> choices;
    std::vector<LengthRange> lengths;
  };

  std::vector<Tag> Tags() const;
  void AddArgumentTags(std::vector<Tag>* tags) const;
  bool PushText(int symbol);
  bool PushValueText(char c);
  bool PushString(char c);
  void Enter(const Tag& tag);
  void BeginValue(const std::string& type);
  bool MayCloseValue() const;
  bool MayCloseCall() const;
  bool JsonIsComplete() const;
  const SchemaNode* ArgumentsNode() const;
  int ValueNode(std::string_view key) const;  // of an argument
  std::optional<std::vector<const SchemaNode*>> Alternatives(int node) const;
  unsigned ArgumentTypes(int node) const;
  TextRules TextRulesOf(int node) const;

  std::shared_ptr<const ShapeOptions> options_;
  Place place_;
  std::u16string tag_;                // what has come of a tag
  std::optional<JsonAcceptor> json_;  // of the response or the value
  bool json_has_begun_ = false;
  int num_calls_ = 0;
  int tool_ = -1;               // that is being called
  std::set<std::string> keys_;  // of the call so far
  std::string key_;
  std::string type_;            // of the value
  TextRules rules_;             // of a value that is a string
  bool is_free_text_ = false;   // which may be any
  std::string text_;            // of one that may be a choice
  int64_t num_characters_ = 0;  // of one whose length counts
  Utf8State utf8_;
};

// The same for tokens. One thread.
class TokenShape {
 public:
  TokenShape(const Tokenizer& tokenizer, std::shared_ptr<const ShapeOptions> options);

  bool Allows(TokenId id) const;
  // Goes on with a token that was allowed.
  void Accept(TokenId id);

 private:
  int FirstSymbol(TokenId id) const;
  bool Push(TokenId id, AnswerShape* shape) const;

  const Tokenizer& tokenizer_;
  TokenId open_, close_, sep_, end_;
  AnswerShape shape_;
  // Which symbols may come next; empty until somebody asks. A vocabulary is long, and most of it
  // is refused by its first bytes.
  mutable std::vector<bool> may_begin_;
};

}  // namespace deltafin
