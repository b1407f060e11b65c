// Byte-pair merging over a table of ranks, as tiktoken does it (spec 6.3).
#pragma once

#include <array>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/types.h"

namespace deltafin {

inline constexpr TokenId kNoToken = -1;

// For keys of a few bytes: two overlapping loads instead of a loop over bytes.
struct ShortBytesHash {
  using is_avalanching = void;  // NOLINT(readability-identifier-naming): Boost's name

  size_t operator()(std::string_view bytes) const noexcept {
    const char* p = bytes.data();
    size_t n = bytes.size();
    uint64_t hash = n * kMultiplier;
    for (; n > 8; p += 8, n -= 8) hash = Mix(hash ^ Load<uint64_t>(p));
    if (n >= 4) {
      const uint64_t tail = Load<uint32_t>(p);
      return Mix(hash ^ (tail << 32 | Load<uint32_t>(p + n - 4)));
    }
    if (n == 0) return Mix(hash);
    const auto byte = [p](size_t i) { return uint64_t{static_cast<uint8_t>(p[i])}; };
    return Mix(hash ^ (byte(0) << 16 | byte(n / 2) << 8 | byte(n - 1)));
  }

 private:
  static constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio

  template <class T>
  static T Load(const char* p) noexcept {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
  }
  static uint64_t Mix(uint64_t x) noexcept {
    x ^= x >> 32;
    x *= kMultiplier;
    x ^= x >> 29;
    x *= kMultiplier;
    return x ^ x >> 32;
  }
};

// The bytes of tokens 0..N-1, one after the other.
struct TokenTable {
  std::string bytes;
  std::vector<uint32_t> starts = {0};  // [N + 1]

  size_t size() const { return starts.size() - 1; }
  void Add(std::string_view token) {
    bytes += token;
    starts.push_back(static_cast<uint32_t>(bytes.size()));
  }
  std::string_view operator[](size_t id) const {
    return std::string_view(bytes).substr(starts[id], starts[id + 1] - starts[id]);
  }
};

// A token's rank is its id. Immutable, thread-safe.
class Bpe {
 public:
  // Memory that a caller keeps from piece to piece.
  struct Scratch;

  // Pieces up to this length are merged by scanning all pairs for the lowest rank, longer ones with
  // a heap. Both take the same time at about 250 bytes (MergePieces in bench/tokenizer_bench.cc).
  static constexpr size_t kMaxScanBytes = 128;

  // REQUIRES: tokens are not empty, all different, and include the 256 single bytes.
  explicit Bpe(TokenTable tokens);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  // Appends the ids of `piece`: the token that is the whole piece, or else what remains when the
  // adjacent pair whose concatenation has the lowest rank (the leftmost of equals) is merged until
  // no pair is a token. O(n log n) for long pieces.
  void Encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;

  // The two ways of merging; they give the same ids. REQUIRES: piece is not empty.
  void MergeByScan(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;
  void MergeByHeap(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;

  // kNoToken when these bytes are not a token.
  TokenId Find(std::string_view bytes) const;
  // REQUIRES: 0 <= id < size().
  std::string_view Bytes(TokenId id) const { return tokens_[static_cast<size_t>(id)]; }
  TokenId size() const { return static_cast<TokenId>(tokens_.size()); }

 private:
  TokenId ByteToken(char byte) const { return byte_tokens_[static_cast<uint8_t>(byte)]; }

  const TokenTable tokens_;
  size_t max_token_bytes_ = 0;
  std::array<TokenId, 256> byte_tokens_{};
  boost::unordered_flat_map<std::string_view, TokenId, ShortBytesHash> ids_;  // keys in tokens_
};

// A part of the piece: what began as one byte and grows by merging with its right neighbour.
struct BpeScanPart {
  uint32_t start;
  TokenId id;
  TokenId pair;  // the token of this part and the next one together, or kNoToken
};
struct BpeHeapPart {
  uint32_t end;       // one past its last byte; the first byte is the part's index
  uint32_t previous;  // index of the left neighbour
  TokenId id;         // kNoToken: merged into its left neighbour
  TokenId pair;
};

struct Bpe::Scratch {
  std::vector<BpeScanPart> scan;
  std::vector<BpeHeapPart> parts;
  std::vector<uint64_t> heap;  // rank << 32 | index of the left part; smallest first
};

}  // namespace deltafin
