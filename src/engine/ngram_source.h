// Guesses that the text goes on as it did after the longest passage that it has repeated.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/draft_source.h"

namespace deltafin {

// A suffix automaton (Blumer et al. 1985) of the text, built token by token: the longest end of the
// text that occurred before is one link away, in amortised constant time.
class NgramSource : public DraftSource {
 public:
  // Remembers between max_tokens / 2 and max_tokens of the last tokens.
  explicit NgramSource(size_t max_tokens = kMaxTokens);

  Draft Propose(std::span<const TokenId> text, int64_t max_tokens) override;
  void Reset() override;

  // Of memory, for ids below vocab_size.
  static uint64_t MaxBytes(int64_t vocab_size);

 private:
  static constexpr size_t kMaxTokens = 65'536;
  static constexpr int32_t kNone = -1;

  // A set of substrings that end at the same places.
  struct State {
    int32_t length = 0;    // of the longest
    int32_t link = kNone;  // the state of the longest end that occurs elsewhere too
    int32_t end = 0;       // a place where they end, the latest that is known
    int32_t first_edge = kNone;
  };
  struct Edge {
    TokenId token = 0;
    int32_t target = 0;
    int32_t next = kNone;
  };

  void Index(std::span<const TokenId> text);
  void Extend(TokenId token);
  int32_t CloneFor(int32_t parent, TokenId token, int32_t target);
  void TouchEnds();
  int32_t Find(int32_t state, TokenId token) const;
  void SetEdge(int32_t state, TokenId token, int32_t target);

  size_t max_tokens_;
  size_t begin_ = 0;    // of the text: where the automaton begins
  size_t indexed_ = 0;  // tokens of it
  int32_t last_ = 0;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> root_edges_;  // by token: the root has too many for a list
};

}  // namespace deltafin
