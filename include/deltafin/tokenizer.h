// Text to token ids and back, exactly as Kimi K3's released tokenizer does it (spec 6.1 - 6.3).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/types.h"

namespace deltafin {

// Whether spellings of special tokens in a text become those tokens. Text of a person or of a file
// is always kPlain: it can never become a control token.
enum class Specials : uint8_t { kPlain, kAllowed };

// Immutable, thread-safe.
class Tokenizer {
 public:
  // Reads tiktoken.model and tokenizer_config.json from `dir`. Throws Error.
  static std::unique_ptr<Tokenizer> Load(const std::string& dir);

  virtual ~Tokenizer() = default;
  // Bytes that are not UTF-8 are replaced by U+FFFD, one per maximal bad sequence.
  virtual std::vector<TokenId> Encode(std::string_view text, Specials specials) const = 0;
  // Concatenates the bytes of the tokens; may end inside a UTF-8 character. Ids out of range throw
  // Error(kInvalidArgument).
  virtual std::string Decode(std::span<const TokenId> ids) const = 0;
  // The bytes of one token (a special one: its spelling).
  virtual std::string_view Bytes(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  // The id of a special token by its spelling, e.g. "<|open|>"; throws Error(kNotFound).
  virtual TokenId SpecialId(std::string_view spelling) const = 0;
  // Ranks + 256 specials.
  virtual TokenId vocab_size() const = 0;
};

// Decodes a stream: never hands out half a UTF-8 character; bytes that can never become one come
// out as U+FFFD. Not thread-safe.
class StreamDecoder {
 public:
  // What can be shown after these bytes.
  std::string Push(std::string_view bytes);
  // What is left at the end: an unfinished character becomes one U+FFFD.
  std::string Finish();

 private:
  std::string pending_;
};

}  // namespace deltafin
