// Kimi K3's chat format: an OpenAI chat request to prompt segments and ids, and the model's output
// back to reasoning, answer and tool calls (spec 6.4 - 6.6).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/tokenizer.h"
#include "deltafin/types.h"

namespace deltafin {

enum class ReasoningEffort : uint8_t { kNone, kLow, kHigh, kMax };

// A piece of a prompt. Every segment is encoded by itself; the ids are concatenated.
struct Segment {
  std::string text;
  Specials specials = Specials::kPlain;
};

struct RenderedChat {
  std::vector<Segment> segments;
  bool thinking = true;  // the prompt ends inside <think>; else inside <response>

  std::string Text() const;
  std::vector<TokenId> Encode(const Tokenizer& tokenizer) const;
};

// Renders the JSON text of an OpenAI chat request: `messages` (required), `tools`, `tool_choice`,
// `reasoning_effort` (none, low, high, max; absent: max), `response_format`, and `thinking` (bool,
// default true; false after the effort none). Other fields are ignored. Throws
// Error(kInvalidArgument) naming the field, Error(kUnsupported) for images and other media.
// What each field becomes: docs/chat-format.md.
RenderedChat RenderChat(std::string_view request_json);

// The same with some fields decided by the caller; what the request says of these is not read.
struct ChatOverrides {
  std::optional<ReasoningEffort> effort;  // kNone: no thinking, unless `thinking` says so
  std::optional<bool> thinking;
};
RenderedChat RenderChat(std::string_view request_json, const ChatOverrides& overrides);

// A conversation without JSON, for the command line.
struct SimpleChat {
  std::string system;  // may be empty
  std::string user;
  ReasoningEffort effort = ReasoningEffort::kMax;  // kNone: says nothing about the effort
  bool thinking = true;
};
RenderedChat RenderSimpleChat(const SimpleChat& chat);

struct ToolCall {
  int index = 0;  // the position among the calls of this message, from 0
  std::string name;
  std::string arguments;  // JSON text of an object; raw text when the model wrote invalid JSON
};

// A piece of a call that is being written. The pieces of a call make its name and arguments, except
// that a key which the model writes twice comes twice. A call that is cut off had pieces all the
// same.
struct ToolCallPiece {
  int index = 0;
  std::string name;       // in the first piece of a call
  std::string arguments;  // what follows of them
};

// What a piece of output adds.
struct ChatDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPiece> call_pieces;
  std::vector<ToolCall> finished_calls;

  bool empty() const {
    return reasoning.empty() && content.empty() && call_pieces.empty() && finished_calls.empty();
  }
};

// Splits generated ids while they come. Matches on ids: the spelling of a marker inside an answer
// is ordinary text. Not thread-safe.
class ChatParser {
 public:
  // `thinking`: as RenderedChat says.
  static std::unique_ptr<ChatParser> Create(const Tokenizer& tokenizer, bool thinking);
  virtual ~ChatParser() = default;
  virtual ChatDelta Push(TokenId id) = 0;
  // The end of the generation, whatever state it is in: text that was held back comes out; a call
  // that is not complete is dropped, and so is a tag that was cut off.
  virtual ChatDelta Finish() = 0;
  // The model closed its message.
  virtual bool message_ended() const = 0;
  // For a conversation that goes on after an answer was cut off: the ids that end the message as
  // the model would have ended it (what is open is closed, an answer that never began is empty).
  // Empty when it has ended. Closes the parser: what follows is ignored.
  virtual std::vector<TokenId> CloseMessage() = 0;
};

}  // namespace deltafin
