#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "text/text_test_util.h"

namespace deltafin {
namespace {

using Ids = std::vector<TokenId>;

// The single bytes in an odd order, then `extra`.
TokenTable MakeTokens(const std::vector<std::string>& extra) {
  TokenTable tokens;
  for (int i = 0; i < 256; ++i) tokens.Add(std::string(1, static_cast<char>(i * 7 + 3)));
  for (const std::string& token : extra) tokens.Add(token);
  return tokens;
}

// Merges as the definition says: the lowest rank, the leftmost of equals, until nothing merges.
Ids NaiveMerge(const TokenTable& tokens, const std::string& piece) {
  std::map<std::string_view, TokenId> ranks;
  for (size_t id = 0; id < tokens.size(); ++id) ranks[tokens[id]] = static_cast<TokenId>(id);
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    TokenId best_rank = kNoToken;
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ranks.find(parts[i] + parts[i + 1]);
      if (it != ranks.end() && (best_rank == kNoToken || it->second < best_rank)) {
        best_rank = it->second;
        best = i;
      }
    }
    if (best_rank == kNoToken) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(ranks.at(part));
  return ids;
}

Ids ByScan(const Bpe& bpe, std::string_view piece) {
  Bpe::Scratch scratch;
  Ids ids;
  bpe.MergeByScan(piece, scratch, ids);
  return ids;
}

Ids ByHeap(const Bpe& bpe, std::string_view piece) {
  Bpe::Scratch scratch;
  Ids ids;
  bpe.MergeByHeap(piece, scratch, ids);
  return ids;
}

Ids Encoded(const Bpe& bpe, std::string_view piece) {
  Bpe::Scratch scratch;
  Ids ids;
  bpe.Encode(piece, scratch, ids);
  return ids;
}

// Random tokens over a small alphabet; ranks are in no sensible order, so that merging one pair can
// make a pair of lower rank.
std::vector<std::string> RandomTokens(RandomText& random, size_t alphabet_size) {
  std::vector<std::string> tokens;
  for (int tries = 0; tries < 60; ++tries) {
    std::string token;
    const size_t length = 2 + random.Below(6);
    for (size_t i = 0; i < length; ++i)
      token += static_cast<char>('a' + random.Below(alphabet_size));
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  return tokens;
}

TEST(Bpe, MergesTheLowestRankAndTheLeftmostOfEquals) {
  const Bpe bpe(MakeTokens({"aa", "ab", "aab", "bb"}));
  EXPECT_EQ(ByScan(bpe, "aaa"), (Ids{256, bpe.Find("a")}));
  EXPECT_EQ(ByHeap(bpe, "aaa"), (Ids{256, bpe.Find("a")}));
  EXPECT_EQ(Encoded(bpe, "aaabb"), (Ids{256, 257, bpe.Find("b")}));
}

// A piece that is a token stays whole even where merging would not get there.
TEST(Bpe, WholePieceFirst) {
  const Bpe bpe(MakeTokens({"xyz"}));
  EXPECT_EQ(Encoded(bpe, "xyz"), Ids{256});
  EXPECT_EQ(Encoded(bpe, "xyzx").size(), 4u);
  EXPECT_EQ(Encoded(bpe, ""), Ids{});
}

TEST(Bpe, BothWaysAgreeWithTheDefinition) {
  RandomText random(5);
  for (int round = 0; round < 300; ++round) {
    const size_t alphabet_size = 1 + random.Below(4);
    const TokenTable tokens = MakeTokens(RandomTokens(random, alphabet_size));
    const Bpe bpe(tokens);
    for (int piece_index = 0; piece_index < 20; ++piece_index) {
      std::string piece;
      const size_t length = 1 + random.Below(piece_index == 0 ? 400 : 40);
      for (size_t i = 0; i < length; ++i) {
        piece += static_cast<char>('a' + random.Below(alphabet_size));
      }
      const Ids expected = NaiveMerge(tokens, piece);
      ASSERT_EQ(ByScan(bpe, piece), expected) << piece;
      ASSERT_EQ(ByHeap(bpe, piece), expected) << piece;
    }
  }
}

TEST(Bpe, EncodeIsTheSameAroundTheChangeFromScanToHeap) {
  RandomText random(6);
  const TokenTable tokens = MakeTokens(RandomTokens(random, 2));
  const Bpe bpe(tokens);
  for (size_t length = Bpe::kMaxScanBytes - 2; length <= Bpe::kMaxScanBytes + 2; ++length) {
    for (int round = 0; round < 50; ++round) {
      const std::string piece = random.Of(U"ab", length);
      ASSERT_EQ(Encoded(bpe, piece), NaiveMerge(tokens, piece));
    }
  }
}

// Quadratic merging would need 10^11 steps or more here: days. The bound is far above what the heap
// takes (under 0.3 s in a release build) to hold under sanitizers and emulation too.
TEST(Bpe, AMillionBytesInOnePiece) {
  std::vector<std::string> powers;
  for (size_t length = 2; length <= 256; length *= 2) powers.emplace_back(length, 'a');
  powers.emplace_back("ab");
  powers.emplace_back("abab");
  const Bpe bpe(MakeTokens(powers));
  constexpr size_t kLength = 1'000'000;
  std::string repeated;
  while (repeated.size() < kLength) repeated += "ab";
  for (const std::string& piece :
       {std::string(kLength, 'a'), repeated, RandomText(7).Bytes(kLength)}) {
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = Encoded(bpe, piece);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    EXPECT_LT(elapsed.count(), 60.0);
    std::string back;
    for (const TokenId id : ids) back += bpe.Bytes(id);
    EXPECT_EQ(back, piece);
  }
  // 3906 x 256 + 64.
  EXPECT_EQ(Encoded(bpe, std::string(kLength, 'a')).size(), 3907u);
}

TEST(Bpe, FindsExactlyTheTokens) {
  RandomText random(8);
  const TokenTable tokens = MakeTokens({"ab", "abc", "abcd", "abcdefgh", "abcdefghi",
                                        "abcdefghijklmnopqrst", std::string("\0\0", 2)});
  const Bpe bpe(tokens);
  for (size_t id = 0; id < tokens.size(); ++id) {
    EXPECT_EQ(bpe.Find(tokens[id]), static_cast<TokenId>(id));
    EXPECT_EQ(bpe.Bytes(static_cast<TokenId>(id)), tokens[id]);
    const std::string longer = std::string(tokens[id]) + "#";
    EXPECT_EQ(bpe.Find(longer), kNoToken);
  }
  EXPECT_EQ(bpe.Find(""), kNoToken);
  EXPECT_EQ(bpe.Find("abcde"), kNoToken);
  EXPECT_EQ(bpe.Find(std::string(300, 'a')), kNoToken);
}

}  // namespace
}  // namespace deltafin
