#include "device/vulkan/gpu_clock.h"

#include <algorithm>

namespace deltafin {
namespace {

// More submissions than are ever under way; those beyond are not measured.
constexpr uint32_t kSlots = 32;
constexpr uint32_t kQueriesByKind = 1024;  // of a slot

}  // namespace

GpuClock::GpuClock(const VulkanApi& api, VkDevice device, double seconds_of_tick, bool by_kind)
    : api_(api),
      device_(device),
      seconds_of_tick_(seconds_of_tick),
      by_kind_(by_kind),
      slots_(kSlots) {
  VkQueryPoolCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
  info.queryType = VK_QUERY_TYPE_TIMESTAMP;
  info.queryCount = kSlots * (by_kind ? kQueriesByKind : 2);
  if (api_.vkCreateQueryPool(device_, &info, nullptr, &pool_) != VK_SUCCESS) pool_ = nullptr;
}

GpuClock::~GpuClock() {
  if (pool_ != nullptr) api_.vkDestroyQueryPool(device_, pool_, nullptr);
}

void GpuClock::Begin(VkCommandBuffer commands, size_t slot) {
  if (pool_ == nullptr || slot >= slots_.size()) return;
  const uint32_t count = by_kind_ ? kQueriesByKind : 2;
  api_.vkCmdResetQueryPool(commands, pool_, static_cast<uint32_t>(slot) * count, count);
  slots_[slot] = {};
  Write(commands, slot, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT);
}

void GpuClock::Mark(VkCommandBuffer commands, size_t slot, std::string_view name) {
  if (!by_kind_ || pool_ == nullptr || slot >= slots_.size()) return;
  if (slots_[slot].used + 1 >= kQueriesByKind) return;
  slots_[slot].names.emplace_back(name);
  Write(commands, slot, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT);
}

void GpuClock::End(VkCommandBuffer commands, size_t slot) {
  if (pool_ == nullptr || slot >= slots_.size()) return;
  Write(commands, slot, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT);
}

void GpuClock::Write(VkCommandBuffer commands, size_t slot, VkPipelineStageFlagBits stage) {
  const uint32_t first = static_cast<uint32_t>(slot) * (by_kind_ ? kQueriesByKind : 2);
  api_.vkCmdWriteTimestamp(commands, stage, pool_, first + slots_[slot].used++);
}

void GpuClock::Collect(size_t slot, GpuUse& use) {
  if (pool_ == nullptr || slot >= slots_.size() || slots_[slot].used == 0) return;
  const Slot& done = slots_[slot];
  const uint32_t first = static_cast<uint32_t>(slot) * (by_kind_ ? kQueriesByKind : 2);
  std::vector<uint64_t> ticks(done.used);
  const VkResult result =
      api_.vkGetQueryPoolResults(device_, pool_, first, done.used, ticks.size() * sizeof(uint64_t),
                                 ticks.data(), sizeof(uint64_t), VK_QUERY_RESULT_64_BIT);
  if (result == VK_SUCCESS) {
    // A submission begins while the one before it is still at work.
    const auto seconds = [this](uint64_t from, uint64_t to) {
      return to > from ? static_cast<double>(to - from) * seconds_of_tick_ : 0.0;
    };
    ticks.front() = std::max(ticks.front(), last_end_);
    use.busy_seconds += seconds(ticks.front(), ticks.back());
    for (size_t i = 0; i < done.names.size(); ++i) {
      GpuUse::Kind& kind = use.kinds[done.names[i]];
      ++kind.count;
      kind.seconds += seconds(ticks[i], ticks[i + 1]);
    }
    last_end_ = std::max(last_end_, ticks.back());
  }
  slots_[slot] = {};
}

}  // namespace deltafin
