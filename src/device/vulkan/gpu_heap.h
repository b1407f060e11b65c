// Memory of a GPU that is taken and given back piece by piece: drivers allow a few thousand
// allocations, and a long context has more pages than that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>

#include "device/vulkan/gpu.h"

namespace deltafin {

class GpuHeap {
 private:
  struct Chunk {
    GpuBuffer buffer;
    std::map<uint64_t, uint64_t> free;  // begin, end
  };

 public:
  // A stretch of a buffer; given back by Give, or with the heap.
  class Piece {
   public:
    bool is_there() const { return chunk_ != nullptr; }
    const GpuBuffer& buffer() const { return chunk_->buffer; }
    uint64_t offset() const { return offset_; }
    VkDeviceAddress address() const { return chunk_->buffer.address() + offset_; }

   private:
    friend class GpuHeap;
    Chunk* chunk_ = nullptr;
    uint64_t offset_ = 0;
    uint64_t bytes_ = 0;
  };

  // Takes memory by `chunk_bytes` or what a piece needs, whichever is more.
  GpuHeap(Gpu& gpu, uint64_t chunk_bytes) : gpu_(gpu), chunk_bytes_(chunk_bytes) {}

  // Throws Error(kOutOfMemory), GpuLost.
  Piece Take(uint64_t bytes);
  // Nothing that was submitted may still use it. A chunk without pieces goes back to the GPU.
  void Give(Piece& piece) noexcept;
  uint64_t chunks_bytes() const;

 private:
  Gpu& gpu_;
  const uint64_t chunk_bytes_;
  std::list<Chunk> chunks_;
};

}  // namespace deltafin
