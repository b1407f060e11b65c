#include <optional>
#include <string>
#include <utility>

#include "deltafin/chat.h"
#include "text/chat_markup.h"
#include "text/request_fields.h"
#include "text/tool_call_builder.h"
#include "text/utf8.h"

namespace deltafin {
namespace {

// Reads tags by the ids of <|open|>, <|close|> and <|sep|>, and what they enclose by the innermost
// element that is open. Tags of known elements never come out as text, wherever they stand; control
// tokens that turn out not to make such a tag come out as they are spelled.
class Parser final : public ChatParser {
 public:
  Parser(const Tokenizer& tokenizer, bool thinking)
      : tokenizer_(tokenizer),
        open_(tokenizer.SpecialId(kOpenMark)),
        close_(tokenizer.SpecialId(kCloseMark)),
        sep_(tokenizer.SpecialId(kSepMark)),
        end_of_message_(tokenizer.SpecialId(kEndOfMessage)),
        place_(thinking ? Place::kThink : Place::kResponse),
        has_response_(!thinking) {}

  ChatDelta Push(TokenId id) override {
    has_end_ = has_end_ || id == end_of_message_;
    if (place_ == Place::kEnded || place_ == Place::kCut) return {};
    if (id == open_ || id == close_) {
      EndTag(false);
      FlushText();
      tag_ = PendingTag{id == close_, {}};
    } else if (id == sep_) {
      tag_ ? EndTag(true) : Text(kSepMark);
    } else if (id == end_of_message_) {
      EndTag(false);
      FlushText();
      place_ = Place::kEnded;  // a call that is not complete is dropped
    } else if (!tokenizer_.IsSpecial(id)) {
      Text(tokenizer_.Bytes(id));
    }
    TakeCallPiece();
    return std::exchange(delta_, {});
  }

  ChatDelta Finish() override {
    // A tag that was cut off is not text, unless it lacks nothing but its <|sep|>.
    if (ChatTag tag; tag_ && ReadChatTag(tag_->text, &tag) == TagText::kPrefix) tag_.reset();
    EndTag(false);
    FlushText();
    TakeCallPiece();
    if (place_ != Place::kEnded) place_ = Place::kCut;
    return std::exchange(delta_, {});
  }

  bool message_ended() const override { return place_ == Place::kEnded; }

  std::vector<TokenId> CloseMessage() override {
    std::vector<TokenId> ids;
    const auto push = [&](TokenId id) {
      ids.push_back(id);
      (void)Push(id);
    };
    const auto tag = [&](TokenId mark, std::string_view name) {
      push(mark);
      for (TokenId id : tokenizer_.Encode(name, Specials::kPlain)) push(id);
      push(sep_);
    };
    if (tag_) push(sep_);  // whatever it makes
    if (place_ == Place::kThink) tag(close_, kThinkTag);
    if (place_ == Place::kArgument) tag(close_, kArgumentTag);
    if (place_ == Place::kJson) tag(close_, kJsonTag);
    if (place_ == Place::kCall) tag(close_, kCallTag);
    if (place_ == Place::kTools) tag(close_, kToolsTag);
    if (place_ == Place::kMessage && !has_response_) tag(open_, kResponseTag);
    if (place_ == Place::kResponse) tag(close_, kResponseTag);
    if (place_ == Place::kMessage) tag(close_, kMessageTag);
    if (!std::exchange(has_end_, true)) ids.push_back(end_of_message_);
    return ids;
  }

 private:
  // The innermost open element.
  enum class Place : uint8_t {
    kMessage,
    kThink,
    kResponse,
    kTools,
    kCall,
    kArgument,
    kJson,
    kEnded,
    kCut,
  };

  struct PendingTag {
    bool is_close = false;
    std::string text;  // since <|open|> or <|close|>
  };

  // ---- text ----

  void Text(std::string_view bytes) {
    if (!tag_) {
      Put(decoder_.Push(bytes));
      return;
    }
    tag_->text += bytes;
    if (ChatTag tag; ReadChatTag(tag_->text, &tag) == TagText::kNone) EndTag(false);
  }

  // Before every change of place: a character that is not complete stays where it began.
  void FlushText() { Put(decoder_.Finish()); }

  void Put(const std::string& text) {
    switch (place_) {
      case Place::kThink:
        delta_.reasoning += text;
        return;
      case Place::kResponse:
        delta_.content += text;
        return;
      case Place::kArgument:
      case Place::kJson:
        call_->AddValueText(text);
        return;
      case Place::kCall:
        call_->AddRaw(text);
        return;
      case Place::kMessage:
      case Place::kTools:
        PutStray(text);
        return;
      case Place::kEnded:
      case Place::kCut:
        return;
    }
  }

  // Text between elements: the model forgot to open its answer. White space there means nothing.
  void PutStray(const std::string& text) {
    if (!in_stray_text_ && IsBlank(text)) return;
    in_stray_text_ = true;
    delta_.content += text;
  }

  // ---- tags ----

  void EndTag(bool has_sep) {
    if (!tag_) return;
    const PendingTag pending = *std::exchange(tag_, std::nullopt);
    // Half characters in a name or key must not reach a reply.
    const std::string text = ReplaceInvalidUtf8(pending.text);
    ChatTag tag;
    if (ReadChatTag(text, &tag) == TagText::kWhole &&
        (pending.is_close ? ApplyClose(tag.name) : ApplyOpen(tag))) {
      in_stray_text_ = false;
      return;
    }
    Text(pending.is_close ? kCloseMark : kOpenMark);
    Text(pending.text);
    if (has_sep) Text(kSepMark);
  }

  bool InValue() const { return place_ == Place::kArgument || place_ == Place::kJson; }

  // Both return false for a tag that is part of a value.
  bool ApplyOpen(const ChatTag& tag) {
    const bool is_value = tag.name == kArgumentTag || tag.name == kJsonTag;
    if (InValue()) {
      if (!is_value && tag.name != kCallTag) return false;
      EndValue();
    }
    if (is_value) {
      if (place_ == Place::kCall) BeginValue(tag);
      return true;
    }
    if (tag.name == kMessageTag) {
      // Its own message begun again is nothing new; that of somebody else is beyond the end.
      if (tag.Attribute("role") == "assistant") return true;
      EndCall();
      place_ = Place::kEnded;
      return true;
    }
    EndCall();
    if (tag.name == kThinkTag) place_ = Place::kThink;
    if (tag.name == kResponseTag) place_ = Place::kResponse;
    has_response_ = has_response_ || tag.name != kThinkTag;
    if (tag.name == kToolsTag) place_ = Place::kTools;
    if (tag.name == kCallTag) {
      call_.emplace(tag);
      place_ = Place::kCall;
      if (!call_->name().empty()) delta_.call_pieces.push_back({num_calls_, call_->name(), ""});
    }
    return true;
  }

  bool ApplyClose(const std::string& name) {
    const bool closes_calls = name == kCallTag || name == kToolsTag || name == kMessageTag;
    if (InValue()) {
      const bool closes_value = name == (place_ == Place::kJson ? kJsonTag : kArgumentTag);
      if (!closes_value && !closes_calls) return false;
      EndValue();
      if (closes_value) return true;
    }
    if (closes_calls) EndCall();
    if (name == kMessageTag) {
      place_ = Place::kEnded;
    } else if ((name == kThinkTag && place_ == Place::kThink) ||
               (name == kResponseTag && place_ == Place::kResponse) ||
               (name == kToolsTag && place_ == Place::kTools)) {
      place_ = Place::kMessage;
    }
    return true;
  }

  // ---- calls ----

  void BeginValue(const ChatTag& tag) {
    call_->BeginValue(tag);
    place_ = tag.name == kJsonTag ? Place::kJson : Place::kArgument;
  }

  void EndValue() {
    call_->EndValue();
    place_ = Place::kCall;
  }

  void TakeCallPiece() {
    if (!call_) return;
    if (std::string piece = call_->TakePiece(); !piece.empty()) {
      delta_.call_pieces.push_back({num_calls_, "", std::move(piece)});
    }
  }

  void EndCall() {
    if (place_ != Place::kCall) return;
    ToolCallBuilder::Result result = call_->Finish(num_calls_);
    TakeCallPiece();
    call_.reset();
    if (result.call) {
      ++num_calls_;
      delta_.finished_calls.push_back(std::move(*result.call));
    }
    delta_.content += result.stray_text;
    place_ = Place::kTools;
  }

  const Tokenizer& tokenizer_;
  const TokenId open_;
  const TokenId close_;
  const TokenId sep_;
  const TokenId end_of_message_;

  Place place_;
  bool has_response_;           // an answer or calls have begun
  bool has_end_ = false;        // <|end_of_msg|> came
  bool in_stray_text_ = false;  // since the last tag
  std::optional<PendingTag> tag_;
  StreamDecoder decoder_;  // of text outside of tags
  std::optional<ToolCallBuilder> call_;
  int num_calls_ = 0;
  ChatDelta delta_;
};

}  // namespace

std::unique_ptr<ChatParser> ChatParser::Create(const Tokenizer& tokenizer, bool thinking) {
  return std::make_unique<Parser>(tokenizer, thinking);
}

}  // namespace deltafin
