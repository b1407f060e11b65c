#include "store/memory_plan.h"

#include <algorithm>

#include "base/format.h"
#include "deltafin/error.h"
#include "store/layout.h"

namespace deltafin {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// A desktop keeps 10 GB or 18 %, whichever is more, but a small machine never more than half.
uint64_t SystemReserve(uint64_t limit) {
  const uint64_t wanted = std::max<uint64_t>(10'000'000'000, limit / 100 * 18);
  return std::min(wanted, limit / 2);
}

uint64_t LayoutBytes(const Checkpoint& checkpoint, const LayerLayout& layout) {
  uint64_t bytes = 0;
  for (const MatrixSpec& matrix : layout.matrices) bytes += checkpoint.Find(matrix.tensor).bytes;
  for (const VectorSpec& vector : layout.vectors) {
    bytes += static_cast<uint64_t>(vector.size) * sizeof(float);
  }
  return bytes;
}

}  // namespace

uint64_t SpineBytes(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  uint64_t bytes = LayoutBytes(checkpoint, LayoutOfTop(config));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    bytes += LayoutBytes(checkpoint, LayoutOfLayer(config, layer));
  }
  return bytes;
}

MemoryPlan PlanMemory(const Checkpoint& checkpoint, const MemoryLimits& limits,
                      const PlanRequest& request) {
  const ModelConfig& config = checkpoint.config();
  MemoryPlan plan;
  plan.limit_bytes = limits.limit_bytes;
  plan.limited_by = limits.limited_by;
  if (request.ram_bytes != 0) {
    plan.budget_bytes = std::min(request.ram_bytes, limits.limit_bytes);
    if (request.ram_bytes < limits.limit_bytes) plan.limited_by = "--ram";
  } else {
    plan.reserve_bytes = SystemReserve(limits.limit_bytes);
    plan.budget_bytes = limits.limit_bytes - plan.reserve_bytes;
  }
  plan.state_bytes = request.state_bytes;
  plan.workspace_bytes = request.workspace_bytes;
  plan.spine_bytes = SpineBytes(checkpoint);

  const uint64_t fixed = plan.state_bytes + plan.workspace_bytes + plan.spine_bytes;
  const int64_t least_slots = config.experts_per_token;
  const uint64_t least = fixed + static_cast<uint64_t>(least_slots) * checkpoint.expert_bytes();
  if (least > plan.budget_bytes) {
    throw Error(
        ErrorCode::kOutOfMemory,
        format("the memory budget of {:.2f} GiB ({}) is too small for this model: it needs at "
               "least {:.2f} GiB (state {:.2f}, working memory {:.2f}, spine {:.2f}, {} "
               "expert slots); pass a larger --ram or free memory",
               static_cast<double>(plan.budget_bytes) / kGiB, plan.limited_by,
               static_cast<double>(least) / kGiB, static_cast<double>(plan.state_bytes) / kGiB,
               static_cast<double>(plan.workspace_bytes) / kGiB,
               static_cast<double>(plan.spine_bytes) / kGiB, least_slots));
  }
  int64_t moe_layers = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) moe_layers += config.IsMoe(layer);
  const int64_t affordable =
      static_cast<int64_t>((plan.budget_bytes - fixed) / checkpoint.expert_bytes());
  plan.expert_slots =
      std::clamp(affordable, least_slots, std::max(least_slots, moe_layers * config.num_experts));
  plan.expert_bytes = static_cast<uint64_t>(plan.expert_slots) * checkpoint.expert_bytes();
  return plan;
}

}  // namespace deltafin
