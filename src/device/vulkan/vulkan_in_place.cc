// Experts in slots of the host's, computed by a GPU that shares its memory: nothing of them is
// copied.
#include "base/check.h"
#include "base/format.h"
#include "device/vulkan/operator_jobs.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {

void VulkanDevice::SetSlots(std::byte* begin, uint64_t slot_bytes, int64_t count) {
  if (slots_.is_there()) gpu_.WaitForAll();
  slots_.Forget();
  if (begin == nullptr || is_lost_ || !gpu_.info().shares_ram) return;
  try {
    slots_.Import(begin, slot_bytes, count);
  } catch (const Error& error) {
    if (on_notice_) {
      on_notice_(
          format("{}; the CPU computes the experts that the GPU does not hold", error.what()));
    }
  }
}

std::optional<HeldMatrix> VulkanDevice::InPlace(const Matrix& w) const {
  if (w.format != WeightFormat::kMxfp4 || w.data == nullptr || is_lost_) return std::nullopt;
  const auto code_bytes = static_cast<uint64_t>(w.rows * w.row_bytes());
  const auto scale_bytes = static_cast<uint64_t>(w.rows * (w.cols / 32));
  const VkDeviceAddress weights = slots_.Find(w.data, code_bytes);
  const VkDeviceAddress scales = slots_.Find(w.scales, scale_bytes);
  if (weights == 0 || scales == 0) return std::nullopt;
  return HeldMatrix{weights, scales, 0, true};
}

HeldMatrix VulkanDevice::GuardedInPlace(const Matrix& w) {
  const std::optional<HeldMatrix> found = InPlace(w);
  DF_CHECK(found);
  HeldMatrix held = *found;
  // Where subnormals are kept, the shader is right with any scale.
  if (flushes_subnormals_) held.quantum = staging_.Quantum(w);
  return held;
}

void VulkanDevice::RecordInPlace(const ProductJob& job, VkDeviceAddress table, uint32_t count,
                                 uint32_t most_n, bool needs_exact) {
  Commands().ProductsInPlace(table, count, job, most_n, needs_exact);
  reads_slots_ = true;
  constexpr uint64_t kBlockBytes = 17;  // 32 codes and their scale
  in_place_bytes_ += uint64_t{count} * job.rows * (job.cols / 32) * kBlockBytes;
}

}  // namespace deltafin
