// Memory of a GPU that is taken piece by piece and given back all at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "device/vulkan/gpu.h"

namespace deltafin {

class GpuArena {
 public:
  struct Piece {
    const GpuBuffer* buffer = nullptr;
    uint64_t offset = 0;

    VkDeviceAddress address() const { return buffer->address() + offset; }
    std::byte* host() const { return buffer->host() + offset; }  // if the use has a host's side
  };

  // Takes memory by `chunk_bytes` or what a piece needs, whichever is more.
  GpuArena(Gpu& gpu, MemoryUse use, uint64_t chunk_bytes)
      : gpu_(gpu), use_(use), chunk_bytes_(chunk_bytes) {}

  // Stays where it is until Reset. Throws Error(kOutOfMemory), GpuLost.
  Piece Take(uint64_t bytes);
  // Nothing uses the pieces any more.
  void Reset();
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t chunks_bytes() const;

 private:
  Gpu& gpu_;
  MemoryUse use_;
  uint64_t chunk_bytes_;
  std::deque<GpuBuffer> chunks_;
  size_t current_ = 0;
  uint64_t used_of_current_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace deltafin
