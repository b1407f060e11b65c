// The weights that a GPU holds, by their id.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "device/matrix.h"
#include "device/vulkan/gpu.h"

namespace deltafin {

struct HeldMatrix {
  VkDeviceAddress weights = 0;  // as lane_layout.h says
  VkDeviceAddress scales = 0;   // int8: float[rows]
  int quantum = 0;              // as lane_layout.h says
  bool is_in_place = false;     // instead MXFP4 as matrix.h says, in slots of the host's
};

// What weights take on their way to the GPU: two pieces, of which one is filled while the other is
// copied.
class WeightStaging {
 public:
  WeightStaging(Gpu& gpu, ThreadPool& pool) : gpu_(gpu), pool_(pool) {}

  // Writes a matrix to `to`, from `offset` on: the rows, then (int8) the scales at a multiple of
  // 64 bytes. Work that is submitted later finds it there; `w` is no longer needed after the call.
  // Throws GpuLost, Error(kOutOfMemory).
  void Write(const Matrix& w, const GpuBuffer& to, uint64_t offset);
  // Of the whole matrix.
  int Quantum(const Matrix& w);

 private:
  struct Piece {
    GpuBuffer buffer;
    uint64_t ticket = 0;
  };
  // `fill` writes `bytes` for `to`.
  template <class Fill>
  void WritePart(const GpuBuffer& to, uint64_t offset, uint64_t bytes, const Fill& fill);

  Gpu& gpu_;
  ThreadPool& pool_;
  std::array<Piece, 2> pieces_;
  size_t next_ = 0;
};

// Up to `capacity_bytes` of weights; what is held stays. One thread.
class HeldWeights {
 public:
  HeldWeights(Gpu& gpu, WeightStaging& staging, uint64_t capacity_bytes)
      : gpu_(gpu), staging_(staging), capacity_bytes_(capacity_bytes) {}

  const HeldMatrix* Find(uint64_t id) const;
  // Copies a matrix to the GPU; null when there is no room for it. Throws GpuLost.
  const HeldMatrix* Add(const Matrix& w);
  // The GPU was lost, and with it all of them.
  void Forget();
  uint64_t taken_bytes() const { return taken_bytes_; }

 private:
  // Memory for so many bytes; null when there is none.
  const GpuBuffer* Take(uint64_t bytes, uint64_t* offset);

  Gpu& gpu_;
  WeightStaging& staging_;
  uint64_t capacity_bytes_;
  std::vector<GpuBuffer> chunks_;
  uint64_t chunks_bytes_ = 0;
  uint64_t used_of_last_ = 0;
  uint64_t taken_bytes_ = 0;
  std::unordered_map<uint64_t, HeldMatrix> held_;
};

}  // namespace deltafin
