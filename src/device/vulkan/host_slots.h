// Host memory that a GPU reads where it is: slots for experts, of GPUs that share the machine's
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/vulkan/gpu.h"

namespace deltafin {

class HostSlots {
 public:
  explicit HostSlots(Gpu& gpu) : gpu_(gpu) {}

  // `count` slots of `slot_bytes` from `begin` on, which stay where they are until Forget. A last
  // one that is not whole pages of the GPU's may be left out. Throws Error(kUnsupported or
  // kOutOfMemory), and then has none; GpuLost.
  void Import(std::byte* begin, uint64_t slot_bytes, int64_t count);
  // Nothing that was submitted may still read them.
  void Forget() { parts_.clear(); }
  bool is_there() const { return !parts_.empty(); }
  // Where the GPU has these bytes; 0: it has not got all of them.
  VkDeviceAddress Find(const std::byte* from, uint64_t bytes) const;

 private:
  struct Part {
    const std::byte* begin = nullptr;
    GpuBuffer buffer;
  };

  Gpu& gpu_;
  std::vector<Part> parts_;  // by address
};

}  // namespace deltafin
