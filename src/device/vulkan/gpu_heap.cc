#include "device/vulkan/gpu_heap.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace deltafin {
namespace {

constexpr uint64_t kAlignment = 256;

}  // namespace

GpuHeap::Piece GpuHeap::Take(uint64_t bytes) {
  const uint64_t rounded =
      (std::max<uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  Piece piece;
  piece.bytes_ = rounded;
  for (Chunk& chunk : chunks_) {
    const auto fits = std::find_if(chunk.free.begin(), chunk.free.end(), [&](const auto& range) {
      return range.second - range.first >= rounded;
    });
    if (fits == chunk.free.end()) continue;
    const auto [begin, end] = *fits;
    chunk.free.erase(fits);
    if (begin + rounded < end) chunk.free.emplace(begin + rounded, end);
    piece.chunk_ = &chunk;
    piece.offset_ = begin;
    return piece;
  }
  GpuBuffer buffer(gpu_, std::max(rounded, chunk_bytes_), MemoryUse::kScratch);
  Chunk& chunk = chunks_.emplace_back();
  chunk.buffer = std::move(buffer);
  if (rounded < chunk.buffer.size_bytes()) chunk.free.emplace(rounded, chunk.buffer.size_bytes());
  piece.chunk_ = &chunk;
  return piece;
}

void GpuHeap::Give(Piece& piece) noexcept {
  if (!piece.is_there()) return;
  Chunk& chunk = *piece.chunk_;
  uint64_t begin = piece.offset_;
  uint64_t end = begin + piece.bytes_;
  piece = {};
  auto next = chunk.free.lower_bound(begin);
  DF_CHECK(next == chunk.free.end() || end <= next->first);
  if (next != chunk.free.end() && next->first == end) {
    end = next->second;
    next = chunk.free.erase(next);
  }
  if (next != chunk.free.begin() && std::prev(next)->second == begin) {
    begin = std::prev(next)->first;
    chunk.free.erase(std::prev(next));
  }
  chunk.free.emplace(begin, end);
  if (end - begin < chunk.buffer.size_bytes()) return;
  chunks_.remove_if([&](const Chunk& each) { return &each == &chunk; });
}

uint64_t GpuHeap::chunks_bytes() const {
  uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_) bytes += chunk.buffer.size_bytes();
  return bytes;
}

}  // namespace deltafin
