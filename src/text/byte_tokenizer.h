// A vocabulary for tests of the parser: every byte is a token, so that every marker and every
// character of more than one byte is cut everywhere.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/error.h"
#include "deltafin/tokenizer.h"

namespace deltafin {

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (int byte = 0; byte < kNumBytes; ++byte) {
      bytes_.emplace_back(1, static_cast<char>(byte));
    }
    for (const std::string_view special : kSpecials) bytes_.emplace_back(special);
  }

  std::vector<TokenId> Encode(std::string_view text, Specials specials) const override {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      TokenId id = static_cast<unsigned char>(text.front());
      for (size_t i = 0; i < kSpecials.size() && specials == Specials::kAllowed; ++i) {
        if (text.starts_with(kSpecials[i])) id = kNumBytes + static_cast<TokenId>(i);
      }
      ids.push_back(id);
      text.remove_prefix(Bytes(id).size());
    }
    return ids;
  }
  std::string Decode(std::span<const TokenId> ids) const override {
    std::string text;
    for (const TokenId id : ids) text += Bytes(id);
    return text;
  }
  std::string_view Bytes(TokenId id) const override { return bytes_.at(static_cast<size_t>(id)); }
  bool IsSpecial(TokenId id) const override { return id >= kNumBytes; }
  TokenId SpecialId(std::string_view spelling) const override {
    const auto it = std::find(kSpecials.begin(), kSpecials.end(), spelling);
    if (it == kSpecials.end()) throw Error(ErrorCode::kNotFound, std::string(spelling));
    return kNumBytes + static_cast<TokenId>(it - kSpecials.begin());
  }
  TokenId vocab_size() const override { return static_cast<TokenId>(bytes_.size()); }

 private:
  static constexpr int kNumBytes = 256;
  static constexpr std::array<std::string_view, 6> kSpecials = {
      "[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"};
  std::vector<std::string> bytes_;
};

}  // namespace deltafin
