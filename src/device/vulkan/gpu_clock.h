// How long a GPU works, by its own clock. Internal to device/vulkan/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "device/vulkan/vulkan_api.h"

namespace deltafin {

// Since the GPU was opened.
struct GpuUse {
  struct Kind {
    uint64_t count = 0;
    double seconds = 0;
  };
  uint64_t submissions = 0;
  uint64_t dispatches = 0;
  uint64_t barriers = 0;
  uint64_t link_bytes = 0;  // copied from the host's memory and to it
  double wait_seconds = 0;  // of the host, for the GPU
  // Where the clock was started: for which the GPU had work, and where it tells kinds apart, from
  // one shader's or copy's end to the next one's, by the later one's name.
  double busy_seconds = 0;
  std::map<std::string, Kind, std::less<>> kinds;
};

// Timestamps around submissions, of which each has a slot until it is collected.
class GpuClock {
 public:
  // `by_kind`: around every command as well, which takes time of its own.
  GpuClock(const VulkanApi& api, VkDevice device, double seconds_of_tick, bool by_kind);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  void Begin(VkCommandBuffer commands, size_t slot);
  void Mark(VkCommandBuffer commands, size_t slot, std::string_view name);
  void End(VkCommandBuffer commands, size_t slot);
  // The submission is done. In the order of submissions.
  void Collect(size_t slot, GpuUse& use);

 private:
  struct Slot {
    uint32_t used = 0;  // queries, of which the first and the last are its begin and end
    std::vector<std::string> names;  // of those between
  };
  void Write(VkCommandBuffer commands, size_t slot, VkPipelineStageFlagBits stage);

  const VulkanApi& api_;
  const VkDevice device_;
  const double seconds_of_tick_;
  const bool by_kind_;
  VkQueryPool pool_ = nullptr;
  std::vector<Slot> slots_;
  uint64_t last_end_ = 0;  // tick
};

}  // namespace deltafin
