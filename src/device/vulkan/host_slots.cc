#include "device/vulkan/host_slots.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"

namespace deltafin {
namespace {

// Of one buffer: less than what any GPU refuses, and few of them for many slots.
constexpr uint64_t kPartBytes = uint64_t{1} << 30;

}  // namespace

void HostSlots::Import(std::byte* begin, uint64_t slot_bytes, int64_t count) {
  const uint64_t alignment = gpu_.import_alignment();
  // A slot lies in one part.
  const uint64_t unit = std::lcm(slot_bytes, alignment);
  const uint64_t step = std::max(unit, kPartBytes / unit * unit);
  const uint64_t all = slot_bytes * static_cast<uint64_t>(count) / alignment * alignment;
  try {
    for (uint64_t at = 0; at < all; at += step) {
      parts_.push_back({begin + at, GpuBuffer(gpu_, begin + at, std::min(step, all - at))});
    }
  } catch (...) {
    parts_.clear();
    throw;
  }
}

VkDeviceAddress HostSlots::Find(const std::byte* from, uint64_t bytes) const {
  const auto after = std::upper_bound(
      parts_.begin(), parts_.end(), from,
      [](const std::byte* address, const Part& part) { return address < part.begin; });
  if (after == parts_.begin()) return 0;
  const Part& part = *std::prev(after);
  const auto offset = static_cast<uint64_t>(from - part.begin);
  const uint64_t size = part.buffer.size_bytes();
  return bytes <= size && offset <= size - bytes ? part.buffer.address() + offset : 0;
}

// ---- GpuBuffer ----

GpuBuffer::GpuBuffer(Gpu& gpu, std::byte* host, uint64_t bytes) : gpu_(&gpu), bytes_(bytes) {
  constexpr const char* kDoing = "using memory of the host's";
  const VulkanApi& api = gpu.api_;
  const auto get_properties = reinterpret_cast<PFN_vkGetMemoryHostPointerPropertiesEXT>(
      gpu.import_alignment() == 0
          ? nullptr
          : api.vkGetDeviceProcAddr(gpu.device_, "vkGetMemoryHostPointerPropertiesEXT"));
  if (get_properties == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                format("the driver of the GPU {} cannot give it memory of the host's "
                       "(VK_EXT_external_memory_host)",
                       gpu.info().name));
  }
  if (reinterpret_cast<uintptr_t>(host) % gpu.import_alignment() != 0) {
    throw Error(ErrorCode::kUnsupported,
                format("the GPU {} takes memory of the host's at multiples of {} bytes alone",
                       gpu.info().name, gpu.import_alignment()));
  }
  if (gpu.faults_.most_bytes != 0 && gpu.allocated_bytes_ + bytes > gpu.faults_.most_bytes) {
    gpu.Check(VK_ERROR_OUT_OF_DEVICE_MEMORY, kDoing);
  }
  constexpr auto kKind = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
  VkExternalMemoryBufferCreateInfo external{};
  external.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO;
  external.handleTypes = kKind;
  VkBufferCreateInfo create{};
  create.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  create.pNext = &external;
  create.size = bytes;
  create.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  gpu.Check(api.vkCreateBuffer(gpu.device_, &create, nullptr, &buffer_), "making a buffer");
  try {
    VkMemoryRequirements needs{};
    api.vkGetBufferMemoryRequirements(gpu.device_, buffer_, &needs);
    VkMemoryHostPointerPropertiesEXT of_host{};
    of_host.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT;
    gpu.Check(get_properties(gpu.device_, kKind, host, &of_host),
              "looking at memory of the host's");
    VkMemoryAllocateFlagsInfo flags{};
    flags.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO;
    flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
    VkImportMemoryHostPointerInfoEXT import{};
    import.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT;
    import.pNext = &flags;
    import.handleType = kKind;
    import.pHostPointer = host;
    VkMemoryAllocateInfo allocate{};
    allocate.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    allocate.pNext = &import;
    allocate.allocationSize = bytes;
    if (needs.size > bytes) gpu.Check(VK_ERROR_OUT_OF_DEVICE_MEMORY, kDoing);
    // What the host writes must be there without flushes.
    Take(allocate,
         gpu.MemoryTypes(needs.memoryTypeBits & of_host.memoryTypeBits, MemoryUse::kFromGpu),
         kDoing);
  } catch (...) {
    Reset();
    throw;
  }
}

}  // namespace deltafin
