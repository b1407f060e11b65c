// A tokenizer from the text of its two files.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/tokenizer.h"
#include "text/bpe.h"

namespace deltafin {

// A text and what messages call it (its path).
struct NamedText {
  std::string_view text;
  std::string name;
};

inline constexpr TokenId kNumSpecials = 256;

// Longest token of a vocabulary, in bytes. K3's longest has 256; a bound keeps a look-up cheap
// whatever the file says.
inline constexpr size_t kMaxTokenBytes = 1024;

// tiktoken.model: lines "BASE64 RANK", ranks 0, 1, 2, ...; all 256 single bytes are tokens, no two
// tokens are equal. Throws Error(kCorrupt) with file and line.
TokenTable ParseRanks(const NamedText& model);

// tokenizer_config.json, "added_tokens_decoder": the spellings of the ids num_ranks ..
// num_ranks + 255; those it does not name are "<|reserved_token_ID|>". All are different. In the
// order of the ids. Throws Error(kCorrupt).
std::vector<std::string> ParseSpecials(const NamedText& config, TokenId num_ranks);

// Both together. Throws Error(kCorrupt).
std::unique_ptr<Tokenizer> ParseTokenizer(const NamedText& model, const NamedText& config);

}  // namespace deltafin
