// Vulkan, loaded when it is asked for: the program starts on machines that do not have it.
#pragma once

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include <memory>
#include <string>
#include <vector>

#include "deltafin/error.h"
#include "device/vulkan/gpu_info.h"

namespace deltafin {

#define DELTAFIN_VULKAN_INSTANCE_FUNCTIONS(X) \
  X(vkDestroyInstance)                        \
  X(vkEnumeratePhysicalDevices)               \
  X(vkGetPhysicalDeviceProperties2)           \
  X(vkGetPhysicalDeviceFeatures2)             \
  X(vkGetPhysicalDeviceMemoryProperties2)     \
  X(vkGetPhysicalDeviceQueueFamilyProperties) \
  X(vkEnumerateDeviceExtensionProperties)     \
  X(vkCreateDevice)                           \
  X(vkGetDeviceProcAddr)

#define DELTAFIN_VULKAN_DEVICE_FUNCTIONS(X) \
  X(vkDestroyDevice)                        \
  X(vkDeviceWaitIdle)                       \
  X(vkGetDeviceQueue)                       \
  X(vkCreateBuffer)                         \
  X(vkDestroyBuffer)                        \
  X(vkGetBufferMemoryRequirements)          \
  X(vkAllocateMemory)                       \
  X(vkFreeMemory)                           \
  X(vkBindBufferMemory)                     \
  X(vkMapMemory)                            \
  X(vkGetBufferDeviceAddress)               \
  X(vkCreateShaderModule)                   \
  X(vkDestroyShaderModule)                  \
  X(vkCreatePipelineLayout)                 \
  X(vkDestroyPipelineLayout)                \
  X(vkCreateComputePipelines)               \
  X(vkDestroyPipeline)                      \
  X(vkCreateCommandPool)                    \
  X(vkDestroyCommandPool)                   \
  X(vkAllocateCommandBuffers)               \
  X(vkBeginCommandBuffer)                   \
  X(vkEndCommandBuffer)                     \
  X(vkCmdBindPipeline)                      \
  X(vkCmdPushConstants)                     \
  X(vkCmdDispatch)                          \
  X(vkCmdCopyBuffer)                        \
  X(vkCmdPipelineBarrier)                   \
  X(vkQueueSubmit)                          \
  X(vkCreateSemaphore)                      \
  X(vkDestroySemaphore)                     \
  X(vkGetSemaphoreCounterValue)             \
  X(vkWaitSemaphores)                       \
  X(vkCreateQueryPool)                      \
  X(vkDestroyQueryPool)                     \
  X(vkCmdResetQueryPool)                    \
  X(vkCmdWriteTimestamp)                    \
  X(vkGetQueryPoolResults)

struct VulkanApi {
#define DELTAFIN_DECLARE(name) PFN_##name name = nullptr;
  DELTAFIN_VULKAN_INSTANCE_FUNCTIONS(DELTAFIN_DECLARE)
  DELTAFIN_VULKAN_DEVICE_FUNCTIONS(DELTAFIN_DECLARE)
#undef DELTAFIN_DECLARE
};

// "VK_ERROR_DEVICE_LOST", for people.
std::string VulkanResultName(VkResult result);

// A GPU as the instance lists it.
struct PhysicalGpu {
  VkPhysicalDevice handle = nullptr;
  GpuInfo info;
  uint32_t queue_family = 0;  // that computes
  double clock_tick_ns = 0;   // of that queue; 0: it has no clock
  bool has_memory_budget = false;
  bool is_portability_subset = false;  // MoltenVK
  uint64_t import_alignment = 0;       // of host memory that it can be given; 0: none
};

// The loader's library, one instance of Vulkan, and the GPUs that it has. Immutable.
class VulkanInstance {
 public:
  // The one of this process. Throws Error(kUnsupported) when there is no Vulkan.
  static std::shared_ptr<const VulkanInstance> Create();
  ~VulkanInstance();
  VulkanInstance(const VulkanInstance&) = delete;
  VulkanInstance& operator=(const VulkanInstance&) = delete;

  const VulkanApi& api() const { return api_; }  // without the functions of a device
  const std::vector<PhysicalGpu>& gpus() const { return gpus_; }
  // Bytes of its own memory that a GPU has left now.
  uint64_t FreeBytes(const PhysicalGpu& gpu) const;

 private:
  VulkanInstance() = default;
  void Load();
  void CreateHandle(PFN_vkGetInstanceProcAddr get);
  PhysicalGpu Inspect(VkPhysicalDevice handle, int number) const;

  VkInstance handle_ = nullptr;
  VulkanApi api_;
  std::vector<PhysicalGpu> gpus_;
};

}  // namespace deltafin
