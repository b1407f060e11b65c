#include "text/bpe.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace deltafin {

Bpe::Bpe(TokenTable tokens) : tokens_(std::move(tokens)) {
  ids_.reserve(tokens_.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const std::string_view bytes = tokens_[id];
    DF_CHECK(!bytes.empty());
    max_token_bytes_ = std::max(max_token_bytes_, bytes.size());
    DF_CHECK(ids_.emplace(bytes, static_cast<TokenId>(id)).second);
  }
  for (int value = 0; value < 256; ++value) {
    const char byte = static_cast<char>(value);
    byte_tokens_[static_cast<size_t>(value)] = Find(std::string_view(&byte, 1));
    DF_CHECK(byte_tokens_[static_cast<size_t>(value)] != kNoToken);
  }
}

TokenId Bpe::Find(std::string_view bytes) const {
  if (bytes.size() > max_token_bytes_) return kNoToken;
  const auto it = ids_.find(bytes);
  return it == ids_.end() ? kNoToken : it->second;
}

void Bpe::Encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  if (piece.empty()) return;
  if (const TokenId id = Find(piece); id != kNoToken) {
    ids.push_back(id);
  } else if (piece.size() <= kMaxScanBytes) {
    MergeByScan(piece, scratch, ids);
  } else {
    MergeByHeap(piece, scratch, ids);
  }
}

void Bpe::MergeByScan(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  std::vector<BpeScanPart>& parts = scratch.scan;
  parts.clear();
  for (size_t i = 0; i < piece.size(); ++i) {
    const TokenId pair = i + 1 < piece.size() ? Find(piece.substr(i, 2)) : kNoToken;
    parts.push_back({static_cast<uint32_t>(i), ByteToken(piece[i]), pair});
  }
  // The token of parts i and i + 1 together.
  const auto pair_of = [&](size_t i) {
    if (i + 1 >= parts.size()) return kNoToken;
    const size_t end = i + 2 < parts.size() ? parts[i + 2].start : piece.size();
    return Find(piece.substr(parts[i].start, end - parts[i].start));
  };
  for (;;) {
    size_t best = 0;
    // As unsigned numbers kNoToken is larger than every rank.
    uint32_t best_rank = static_cast<uint32_t>(kNoToken);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (const auto rank = static_cast<uint32_t>(parts[i].pair); rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == static_cast<uint32_t>(kNoToken)) break;
    parts[best].id = parts[best].pair;
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
    parts[best].pair = pair_of(best);
    if (best > 0) parts[best - 1].pair = pair_of(best - 1);
  }
  for (const BpeScanPart& part : parts) ids.push_back(part.id);
}

void Bpe::MergeByHeap(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  const auto size = static_cast<uint32_t>(piece.size());
  std::vector<BpeHeapPart>& parts = scratch.parts;
  std::vector<uint64_t>& heap = scratch.heap;
  const auto entry = [](TokenId rank, uint32_t left) {
    return static_cast<uint64_t>(rank) << 32 | left;
  };
  parts.clear();
  heap.clear();
  for (uint32_t i = 0; i < size; ++i) {
    const TokenId pair = i + 1 < size ? Find(piece.substr(i, 2)) : kNoToken;
    parts.push_back({i + 1, i - 1, ByteToken(piece[i]), pair});
    if (pair != kNoToken) heap.push_back(entry(pair, i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  // Looks up the pair that begins at part `left` after one of its two parts changed.
  const auto update_pair = [&](uint32_t left) {
    const uint32_t right = parts[left].end;
    parts[left].pair = right < size ? Find(piece.substr(left, parts[right].end - left)) : kNoToken;
    if (parts[left].pair == kNoToken) return;
    heap.push_back(entry(parts[left].pair, left));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto left = static_cast<uint32_t>(heap.back());
    const auto rank = static_cast<TokenId>(heap.back() >> 32);
    heap.pop_back();
    // Entries are not removed when a part changes: this one may be out of date.
    if (parts[left].id == kNoToken || parts[left].pair != rank) continue;
    const uint32_t right = parts[left].end;
    parts[left].id = rank;
    parts[left].end = parts[right].end;
    parts[right].id = kNoToken;
    if (parts[left].end < size) parts[parts[left].end].previous = left;
    update_pair(left);
    if (left > 0) update_pair(parts[left].previous);
  }
  for (uint32_t i = 0; i < size; i = parts[i].end) ids.push_back(parts[i].id);
}

}  // namespace deltafin
