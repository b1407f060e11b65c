#include "device/vulkan/gpu_arena.h"

#include <algorithm>

namespace deltafin {
namespace {

constexpr uint64_t kAlignment = 256;

}  // namespace

GpuArena::Piece GpuArena::Take(uint64_t bytes) {
  const uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (current_ < chunks_.size() && used_of_current_ + rounded > chunks_[current_].size_bytes()) {
    ++current_;
    used_of_current_ = 0;
  }
  if (current_ == chunks_.size()) {
    chunks_.emplace_back(gpu_, std::max(rounded, chunk_bytes_), use_);
    used_of_current_ = 0;
  }
  const Piece piece{&chunks_[current_], used_of_current_};
  used_of_current_ += rounded;
  used_bytes_ += rounded;
  return piece;
}

uint64_t GpuArena::chunks_bytes() const {
  uint64_t bytes = 0;
  for (const GpuBuffer& chunk : chunks_) bytes += chunk.size_bytes();
  return bytes;
}

void GpuArena::Reset() {
  current_ = 0;
  used_of_current_ = 0;
  used_bytes_ = 0;
}

}  // namespace deltafin
