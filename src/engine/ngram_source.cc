#include "engine/ngram_source.h"

#include <algorithm>

#include "base/check.h"

namespace deltafin {

NgramSource::NgramSource(size_t max_tokens) : max_tokens_(max_tokens) {
  DF_CHECK(max_tokens >= 2);
  Reset();
}

void NgramSource::Reset() {
  states_.assign(1, {});
  edges_.clear();
  root_edges_.clear();
  begin_ = indexed_ = 0;
  last_ = 0;
}

// An automaton of n tokens has fewer than 2 n states and 3 n edges; a vector that grew may hold
// twice what it needs.
uint64_t NgramSource::MaxBytes(int64_t vocab_size) {
  return 2 * (2 * kMaxTokens * sizeof(State) + 3 * kMaxTokens * sizeof(Edge) +
              static_cast<uint64_t>(vocab_size) * sizeof(int32_t));
}

Draft NgramSource::Propose(std::span<const TokenId> text, int64_t max_tokens) {
  DF_CHECK(text.size() >= begin_ + indexed_);
  Index(text);
  Draft draft;
  const int32_t link = states_[last_].link;
  if (link > 0) {
    draft.match = states_[link].length;
    const size_t from = begin_ + static_cast<size_t>(states_[link].end) + 1;
    for (size_t i = 0; i < static_cast<size_t>(max_tokens); ++i) {
      const size_t at = from + i;  // a passage that overlaps its repetition goes on as a period
      draft.tokens.push_back(at < text.size() ? text[at] : draft.tokens[at - text.size()]);
    }
  }
  return draft;
}

void NgramSource::Index(std::span<const TokenId> text) {
  if (text.size() - begin_ > max_tokens_) {
    Reset();
    begin_ = text.size() - max_tokens_ / 2;
  }
  while (begin_ + indexed_ < text.size()) {
    TouchEnds();  // only now: a guess must come from an earlier place than the end itself
    Extend(text[begin_ + indexed_]);
  }
}

int32_t NgramSource::Find(int32_t state, TokenId token) const {
  if (state == 0) {
    return static_cast<size_t>(token) < root_edges_.size() ? root_edges_[token] : kNone;
  }
  int32_t edge = states_[state].first_edge;
  while (edge != kNone && edges_[edge].token != token) edge = edges_[edge].next;
  return edge == kNone ? kNone : edges_[edge].target;
}

void NgramSource::SetEdge(int32_t state, TokenId token, int32_t target) {
  if (state == 0) {
    if (root_edges_.size() <= static_cast<size_t>(token)) root_edges_.resize(token + 1, kNone);
    root_edges_[token] = target;
    return;
  }
  for (int32_t edge = states_[state].first_edge; edge != kNone; edge = edges_[edge].next) {
    if (edges_[edge].token != token) continue;
    edges_[edge].target = target;
    return;
  }
  edges_.push_back({token, target, states_[state].first_edge});
  states_[state].first_edge = static_cast<int32_t>(edges_.size()) - 1;
}

void NgramSource::Extend(TokenId token) {
  const auto added = static_cast<int32_t>(states_.size());
  states_.push_back({states_[last_].length + 1, 0, static_cast<int32_t>(indexed_), kNone});
  ++indexed_;
  int32_t p = last_;
  last_ = added;
  while (p != kNone && Find(p, token) == kNone) {
    SetEdge(p, token, added);
    p = states_[p].link;
  }
  if (p == kNone) return;
  const int32_t q = Find(p, token);
  states_[added].link = states_[q].length == states_[p].length + 1 ? q : CloneFor(p, token, q);
}

// Splits off the substrings of `target` that `parent` leads to: they occur at the end as well.
int32_t NgramSource::CloneFor(int32_t parent, TokenId token, int32_t target) {
  const auto clone = static_cast<int32_t>(states_.size());
  const State original = states_[target];
  states_.push_back({states_[parent].length + 1, original.link, original.end, kNone});
  for (int32_t edge = original.first_edge; edge != kNone; edge = edges_[edge].next) {
    edges_.push_back({edges_[edge].token, edges_[edge].target, states_[clone].first_edge});
    states_[clone].first_edge = static_cast<int32_t>(edges_.size()) - 1;
  }
  for (int32_t p = parent; p != kNone && Find(p, token) == target; p = states_[p].link) {
    SetEdge(p, token, clone);
  }
  states_[target].link = clone;
  return clone;
}

// What the text ends with was seen here last. Only the longest few matter, and a text such as
// "aaaa" has as many as tokens.
void NgramSource::TouchEnds() {
  constexpr int kMaxStates = 16;
  int32_t state = last_;
  for (int i = 0; i < kMaxStates && state > 0; ++i, state = states_[state].link) {
    states_[state].end = static_cast<int32_t>(indexed_) - 1;
  }
}

}  // namespace deltafin
