#include "deltafin/tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/format.h"
#include "io/file.h"
#include "io/quote.h"
#include "text/bpe.h"
#include "text/parse_tokenizer.h"
#include "text/pretokenizer.h"
#include "text/text_cuts.h"
#include "text/utf8.h"

namespace deltafin {
namespace {

// The spellings of the special tokens, and where they stand in a text.
class SpecialTokens {
 public:
  SpecialTokens(std::vector<std::string> spellings, TokenId first_id)
      : spellings_(std::move(spellings)), first_id_(first_id) {
    for (size_t i = 0; i < spellings_.size(); ++i) {
      const std::string& spelling = spellings_[i];
      ids_.emplace(spelling, first_id + static_cast<TokenId>(i));
      starts_with_[static_cast<uint8_t>(spelling[0])] = true;
      lengths_.push_back(spelling.size());
    }
    std::sort(lengths_.begin(), lengths_.end(), std::greater<>());
    lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
  }

  struct Match {
    size_t start;
    size_t length;  // 0: none up to the end of the text
    TokenId id;
  };

  // The first one at or after `pos`; the longest of those that start there.
  Match FindNext(std::string_view text, size_t pos) const {
    for (; pos < text.size(); ++pos) {
      if (!starts_with_[static_cast<uint8_t>(text[pos])]) continue;
      for (const size_t length : lengths_) {
        if (length > text.size() - pos) continue;
        const TokenId id = Find(text.substr(pos, length));
        if (id != kNoToken) return {pos, length, id};
      }
    }
    return {text.size(), 0, kNoToken};
  }

  TokenId Find(std::string_view spelling) const {
    const auto it = ids_.find(spelling);
    return it == ids_.end() ? kNoToken : it->second;
  }

  // REQUIRES: the id of a special token.
  std::string_view Spelling(TokenId id) const {
    return spellings_[static_cast<size_t>(id - first_id_)];
  }

 private:
  const std::vector<std::string> spellings_;
  const TokenId first_id_;
  boost::unordered_flat_map<std::string_view, TokenId, ShortBytesHash> ids_;  // keys in spellings_
  std::array<bool, 256> starts_with_{};
  std::vector<size_t> lengths_;  // different ones, longest first
};

class TiktokenTokenizer final : public Tokenizer {
 public:
  TiktokenTokenizer(TokenTable tokens, std::vector<std::string> spellings)
      : bpe_(std::move(tokens)), specials_(std::move(spellings), bpe_.size()) {}

  std::vector<TokenId> Encode(std::string_view text, Specials specials) const override {
    std::string repaired;
    if (!IsValidUtf8(text)) {
      repaired = ReplaceInvalidUtf8(text);
      text = repaired;
    }
    std::vector<TokenId> ids;
    ids.reserve(text.size() / 4 + 4);
    Bpe::Scratch scratch;
    for (const std::string_view cut : CutText(text)) {
      if (specials == Specials::kAllowed) {
        EncodeWithSpecials(cut, scratch, ids);
      } else {
        EncodePlain(cut, scratch, ids);
      }
    }
    return ids;
  }

  std::string Decode(std::span<const TokenId> ids) const override {
    std::string out;
    for (const TokenId id : ids) out += Bytes(id);
    return out;
  }

  std::string_view Bytes(TokenId id) const override {
    if (id < 0 || id >= vocab_size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("token id {} does not exist, expected 0..{}", id, vocab_size() - 1));
    }
    return id < bpe_.size() ? bpe_.Bytes(id) : specials_.Spelling(id);
  }

  bool IsSpecial(TokenId id) const override { return id >= bpe_.size() && id < vocab_size(); }

  TokenId SpecialId(std::string_view spelling) const override {
    const TokenId id = specials_.Find(spelling);
    if (id == kNoToken) {
      throw Error(
          ErrorCode::kNotFound,
          format("the tokenizer has no special token {}; is tokenizer_config.json the one of "
                 "this model?",
                 Quote(spelling)));
    }
    return id;
  }

  TokenId vocab_size() const override { return bpe_.size() + kNumSpecials; }

 private:
  void EncodeWithSpecials(std::string_view text, Bpe::Scratch& scratch,
                          std::vector<TokenId>& ids) const {
    for (size_t pos = 0; pos < text.size();) {
      const SpecialTokens::Match match = specials_.FindNext(text, pos);
      // Each stretch is split on its own: the lookahead of the pre-tokeniser ends with it.
      EncodePlain(text.substr(pos, match.start - pos), scratch, ids);
      if (match.length > 0) ids.push_back(match.id);
      pos = match.start + match.length;
    }
  }

  void EncodePlain(std::string_view text, Bpe::Scratch& scratch, std::vector<TokenId>& ids) const {
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = pre_tokenizer_.PieceEnd(text, pos);
      bpe_.Encode(text.substr(pos, end - pos), scratch, ids);
      pos = end;
    }
  }

  const PreTokenizer pre_tokenizer_;
  const Bpe bpe_;
  const SpecialTokens specials_;
};

}  // namespace

std::unique_ptr<Tokenizer> ParseTokenizer(const NamedText& model, const NamedText& config) {
  TokenTable tokens = ParseRanks(model);
  std::vector<std::string> spellings = ParseSpecials(config, static_cast<TokenId>(tokens.size()));
  return std::make_unique<TiktokenTokenizer>(std::move(tokens), std::move(spellings));
}

std::unique_ptr<Tokenizer> Tokenizer::Load(const std::string& dir) {
  // K3's files have 2.8 MB and 3.5 KB.
  constexpr uint64_t kMaxModelBytes = 64 << 20;
  constexpr uint64_t kMaxConfigBytes = 4 << 20;
  FileSystem& fs = RealFileSystem();
  const std::string model_path = JoinPath(dir, "tiktoken.model");
  const std::string config_path = JoinPath(dir, "tokenizer_config.json");
  const std::string model = ReadWholeFile(fs, model_path, kMaxModelBytes);
  const std::string config = ReadWholeFile(fs, config_path, kMaxConfigBytes);
  return ParseTokenizer({model, model_path}, {config, config_path});
}

}  // namespace deltafin
