#include "device/vulkan/vulkan_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"

namespace deltafin {
namespace {

constexpr uint32_t kLeastVersion = VK_API_VERSION_1_2;  // buffer addresses, timeline semaphores
constexpr const char* kPortabilitySubset = "VK_KHR_portability_subset";

constexpr const char* kLibraries[] = {
#ifdef __APPLE__
    "libvulkan.1.dylib",
    "libMoltenVK.dylib",
#else
    "libvulkan.so.1",
#endif
};

std::string Version(uint32_t version) {
  return format("{}.{}.{}", VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version),
                VK_API_VERSION_PATCH(version));
}

GpuKind KindOf(VkPhysicalDeviceType type) {
  switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
      return GpuKind::kDiscrete;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
      return GpuKind::kIntegrated;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return GpuKind::kVirtual;
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
      return GpuKind::kSoftware;
    default:
      return GpuKind::kOther;
  }
}

template <class Function>
Function FunctionAt(PFN_vkGetInstanceProcAddr get, VkInstance instance, const char* name) {
  const auto found = reinterpret_cast<Function>(get(instance, name));
  if (found == nullptr) {
    throw Error(ErrorCode::kUnsupported, format("this Vulkan has no function {}", name));
  }
  return found;
}

}  // namespace

const char* GpuKindName(GpuKind kind) {
  switch (kind) {
    case GpuKind::kDiscrete:
      return "discrete";
    case GpuKind::kIntegrated:
      return "integrated";
    case GpuKind::kVirtual:
      return "virtual";
    case GpuKind::kSoftware:
      return "software";
    case GpuKind::kOther:
      return "other";
  }
  return "";
}

std::vector<GpuInfo> ListGpus() {
  const std::shared_ptr<const VulkanInstance> instance = VulkanInstance::Create();
  std::vector<GpuInfo> gpus;
  for (const PhysicalGpu& gpu : instance->gpus()) gpus.push_back(gpu.info);
  return gpus;
}

std::string VulkanResultName(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
      return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_INITIALIZATION_FAILED:
      return "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_DEVICE_LOST:
      return "VK_ERROR_DEVICE_LOST";
    case VK_ERROR_MEMORY_MAP_FAILED:
      return "VK_ERROR_MEMORY_MAP_FAILED";
    case VK_ERROR_EXTENSION_NOT_PRESENT:
      return "VK_ERROR_EXTENSION_NOT_PRESENT";
    case VK_ERROR_FEATURE_NOT_PRESENT:
      return "VK_ERROR_FEATURE_NOT_PRESENT";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
      return "VK_ERROR_INCOMPATIBLE_DRIVER";
    case VK_ERROR_TOO_MANY_OBJECTS:
      return "VK_ERROR_TOO_MANY_OBJECTS";
    default:
      return format("VkResult {}", static_cast<int>(result));
  }
}

std::shared_ptr<const VulkanInstance> VulkanInstance::Create() {
  // Never destroyed: the loader would unload drivers, which leave memory and threads behind.
  static const auto* const kInstance = new std::shared_ptr<const VulkanInstance>([] {
    std::shared_ptr<VulkanInstance> instance(new VulkanInstance());
    instance->Load();
    return instance;
  }());
  return *kInstance;
}

void VulkanInstance::Load() {
  // For good: drivers leave threads and what ends with them behind.
  void* library = nullptr;
  for (const char* name : kLibraries) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                format("Vulkan is not installed ({} was not found); a driver for the GPU and the "
                       "Vulkan loader (Debian: libvulkan1) are needed",
                       kLibraries[0]));
  }
  const auto get =
      reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
  if (get == nullptr) {
    throw Error(
        ErrorCode::kUnsupported,
        format("{} is not a Vulkan loader: it has no vkGetInstanceProcAddr", kLibraries[0]));
  }
  CreateHandle(get);
#define DELTAFIN_LOAD(name) api_.name = FunctionAt<PFN_##name>(get, handle_, #name);
  DELTAFIN_VULKAN_INSTANCE_FUNCTIONS(DELTAFIN_LOAD)
#undef DELTAFIN_LOAD

  uint32_t count = 0;
  VkResult result = api_.vkEnumeratePhysicalDevices(handle_, &count, nullptr);
  std::vector<VkPhysicalDevice> handles(count);
  if (result == VK_SUCCESS && count > 0) {
    result = api_.vkEnumeratePhysicalDevices(handle_, &count, handles.data());
  }
  if (result != VK_SUCCESS) {
    throw Error(ErrorCode::kUnsupported,
                format("Vulkan could not list the GPUs: {}", VulkanResultName(result)));
  }
  for (uint32_t i = 0; i < count; ++i) gpus_.push_back(Inspect(handles[i], static_cast<int>(i)));
}

void VulkanInstance::CreateHandle(PFN_vkGetInstanceProcAddr get) {
  const auto create = FunctionAt<PFN_vkCreateInstance>(get, nullptr, "vkCreateInstance");
  VkApplicationInfo application{};
  application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  application.pApplicationName = "deltafin";
  application.apiVersion = kLeastVersion;
  VkInstanceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pApplicationInfo = &application;
#ifdef __APPLE__
  const char* const extension = VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME;
  info.flags = VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
  info.enabledExtensionCount = 1;
  info.ppEnabledExtensionNames = &extension;
#endif
  const VkResult result = create(&info, nullptr, &handle_);
  if (result != VK_SUCCESS) {
    throw Error(ErrorCode::kUnsupported,
                format("Vulkan did not start: {}{}", VulkanResultName(result),
                       result == VK_ERROR_INCOMPATIBLE_DRIVER ? " (no driver is installed)" : ""));
  }
}

PhysicalGpu VulkanInstance::Inspect(VkPhysicalDevice handle, int number) const {
  PhysicalGpu gpu;
  gpu.handle = handle;
  VkPhysicalDeviceVulkan12Properties properties12{};
  properties12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES;
  VkPhysicalDeviceProperties2 properties{};
  properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  properties.pNext = &properties12;
  api_.vkGetPhysicalDeviceProperties2(handle, &properties);
  GpuInfo& info = gpu.info;
  info.number = number;
  info.name = properties.properties.deviceName;
  info.vulkan = Version(properties.properties.apiVersion);
  info.kind = KindOf(properties.properties.deviceType);
  info.shares_ram = info.kind == GpuKind::kSoftware || info.kind == GpuKind::kIntegrated;
  if (properties.properties.apiVersion < kLeastVersion) {
    info.missing = format("Vulkan {}; 1.2 is needed", info.vulkan);
    return gpu;
  }
  info.driver = format("{} {}", properties12.driverName, properties12.driverInfo);
  info.keeps_subnormals = properties12.shaderDenormPreserveFloat32;

  VkPhysicalDeviceVulkan12Features features12{};
  features12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  VkPhysicalDeviceFeatures2 features{};
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  features.pNext = &features12;
  api_.vkGetPhysicalDeviceFeatures2(handle, &features);
  // Shaders that compute with doubles need more shared memory than the least there may be.
  constexpr uint32_t kSharedBytes = uint32_t{32} << 10;
  info.has_doubles = features.features.shaderFloat64 &&
                     properties.properties.limits.maxComputeSharedMemorySize >= kSharedBytes;
  if (!features12.bufferDeviceAddress) info.missing = "no buffer addresses (bufferDeviceAddress)";
  if (!features12.timelineSemaphore) info.missing = "no timeline semaphores";

  uint32_t count = 0;
  api_.vkGetPhysicalDeviceQueueFamilyProperties(handle, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  api_.vkGetPhysicalDeviceQueueFamilyProperties(handle, &count, families.data());
  const auto family = std::find_if(families.begin(), families.end(), [](const auto& f) {
    return (f.queueFlags & VK_QUEUE_COMPUTE_BIT) != 0 && f.queueCount > 0;
  });
  if (family == families.end()) info.missing = "no queue that computes";
  gpu.queue_family = static_cast<uint32_t>(family - families.begin());
  if (family != families.end() && family->timestampValidBits == 64) {
    gpu.clock_tick_ns = static_cast<double>(properties.properties.limits.timestampPeriod);
  }

  api_.vkEnumerateDeviceExtensionProperties(handle, nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> extensions(count);
  api_.vkEnumerateDeviceExtensionProperties(handle, nullptr, &count, extensions.data());
  for (const VkExtensionProperties& extension : extensions) {
    const std::string_view name = extension.extensionName;
    gpu.has_memory_budget |= name == VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
    gpu.is_portability_subset |= name == kPortabilitySubset;
    if (name == VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME) {
      VkPhysicalDeviceExternalMemoryHostPropertiesEXT host{};
      host.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT;
      properties.pNext = &host;
      api_.vkGetPhysicalDeviceProperties2(handle, &properties);
      properties.pNext = nullptr;
      gpu.import_alignment = host.minImportedHostPointerAlignment;
    }
  }

  VkPhysicalDeviceMemoryProperties2 memory{};
  memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
  api_.vkGetPhysicalDeviceMemoryProperties2(handle, &memory);
  for (uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; ++i) {
    const VkMemoryHeap& heap = memory.memoryProperties.memoryHeaps[i];
    if ((heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) == 0) continue;
    info.memory_bytes = std::max<uint64_t>(info.memory_bytes, heap.size);
  }
  info.free_bytes = FreeBytes(gpu);
  return gpu;
}

uint64_t VulkanInstance::FreeBytes(const PhysicalGpu& gpu) const {
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{};
  budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
  VkPhysicalDeviceMemoryProperties2 memory{};
  memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
  if (gpu.has_memory_budget) memory.pNext = &budget;
  api_.vkGetPhysicalDeviceMemoryProperties2(gpu.handle, &memory);
  uint64_t most = 0;
  for (uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; ++i) {
    const VkMemoryHeap& heap = memory.memoryProperties.memoryHeaps[i];
    if ((heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) == 0) continue;
    uint64_t left = heap.size;
    if (gpu.has_memory_budget) {
      left = budget.heapBudget[i] - std::min(budget.heapBudget[i], budget.heapUsage[i]);
    }
    most = std::max(most, left);
  }
  return most;
}

VulkanInstance::~VulkanInstance() {
  if (handle_ != nullptr && api_.vkDestroyInstance != nullptr) {
    api_.vkDestroyInstance(handle_, nullptr);
  }
}

}  // namespace deltafin
