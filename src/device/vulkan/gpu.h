// One GPU, opened: memory, programs, and work handed to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deltafin/error.h"
#include "device/matrix.h"
#include "device/vulkan/gpu_info.h"
#include "device/vulkan/vulkan_api.h"

namespace deltafin {

class Gpu;

// The GPU answers no more: its driver gave it up, or it was silent for a minute.
class GpuLost : public Error {
 public:
  explicit GpuLost(const std::string& message) : Error(ErrorCode::kIo, message) {}
};

// What tests make fail.
struct GpuFaults {
  int64_t submits_until_lost = -1;  // -1: never
  uint64_t most_bytes = 0;          // of all buffers; 0: any
};

// How a GPU's arithmetic gives the bits of docs/numerics.md.
enum class GpuArithmetic : uint8_t {
  kFused,     // its fma is fused
  kControls,  // and subnormals are asked for
  kEmulated,  // fma in double precision
};

enum class MemoryUse : uint8_t {
  kWeights,  // the GPU's own; mapped where that is the machine's RAM
  kToGpu,    // written by the host, mapped
  kFromGpu,  // read by the host, mapped and cached
  kScratch,  // the GPU's own
};

// Memory that a GPU can use, owned. The GPU must outlive it.
class GpuBuffer {
 public:
  GpuBuffer() = default;
  GpuBuffer(Gpu& gpu, uint64_t bytes, MemoryUse use);  // throws Error(kOutOfMemory), GpuLost
  ~GpuBuffer() { Reset(); }
  GpuBuffer(GpuBuffer&& other) noexcept { *this = std::move(other); }
  GpuBuffer& operator=(GpuBuffer&& other) noexcept;

  VkBuffer handle() const { return buffer_; }
  uint64_t size_bytes() const { return bytes_; }
  VkDeviceAddress address() const { return address_; }
  std::byte* host() const { return host_; }  // null where it is not mapped
  // Whether the GPU reads it as fast as memory of its own.
  bool is_local() const { return is_local_; }

 private:
  void Reset() noexcept;

  Gpu* gpu_ = nullptr;
  VkBuffer buffer_ = nullptr;
  VkDeviceMemory memory_ = nullptr;
  uint64_t bytes_ = 0;
  VkDeviceAddress address_ = 0;
  std::byte* host_ = nullptr;
  bool is_local_ = false;
};

// A matrix product as the shader is told of it (shaders/product.comp).
struct ProductJob {
  VkDeviceAddress weights = 0;
  VkDeviceAddress scales = 0;
  VkDeviceAddress x = 0;
  VkDeviceAddress y = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint32_t n = 0;
};

// Commands that are being recorded.
class GpuCommands {
 public:
  void Copy(const GpuBuffer& to, uint64_t to_offset, const GpuBuffer& from, uint64_t from_offset,
            uint64_t bytes);
  // What was copied before is there for what comes after.
  void CopiesBeforeWork();
  void Product(WeightFormat format, const ProductJob& job);
  void Probe(VkDeviceAddress triples, VkDeviceAddress results, uint32_t count);

 private:
  friend class Gpu;
  GpuCommands(Gpu& gpu, VkCommandBuffer handle) : gpu_(&gpu), handle_(handle) {}
  Gpu* gpu_;
  VkCommandBuffer handle_;
};

// One thread. Work runs in the order of its submission.
class Gpu {
 public:
  // Throws Error(kUnsupported) when the GPU cannot be used.
  Gpu(std::shared_ptr<const VulkanInstance> instance, size_t index);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const GpuInfo& info() const { return physical_.info; }
  // From now on; a GPU that was lost on purpose is there again.
  void SetFaults(const GpuFaults& faults) {
    faults_ = faults;
    lost_ = false;
  }
  uint64_t FreeBytes() const { return instance_->FreeBytes(physical_); }
  void SetArithmetic(GpuArithmetic arithmetic) { arithmetic_ = arithmetic; }
  GpuArithmetic arithmetic() const { return arithmetic_; }

  // These throw GpuLost.
  GpuCommands Begin();
  // The ticket grows with each submission.
  uint64_t Submit(const GpuCommands& commands);
  // What was submitted with this ticket and before is done, and the host sees its results.
  void Wait(uint64_t ticket);
  // Of everything.
  void WaitForAll() noexcept;

 private:
  friend class GpuBuffer;
  friend class GpuCommands;
  struct Commands {
    VkCommandBuffer handle = nullptr;
    uint64_t ticket = 0;
  };
  struct Pipeline {
    std::string name;
    VkPipeline handle = nullptr;
  };

  void CreateDevice();
  void LoadFunctions();
  void Destroy() noexcept;
  // Throws unless `result` is a success.
  void Check(VkResult result, const char* what);
  uint32_t MemoryType(uint32_t allowed, MemoryUse use) const;
  VkPipeline PipelineOf(const std::string& name);
  const char* ArithmeticSuffix() const;

  std::shared_ptr<const VulkanInstance> instance_;
  const PhysicalGpu physical_;
  GpuFaults faults_;
  VulkanApi api_;
  VkPhysicalDeviceMemoryProperties memory_{};
  GpuArithmetic arithmetic_ = GpuArithmetic::kFused;
  VkDevice device_ = nullptr;
  VkQueue queue_ = nullptr;
  VkSemaphore timeline_ = nullptr;
  VkCommandPool pool_ = nullptr;
  VkPipelineLayout layout_ = nullptr;
  std::vector<Commands> commands_;
  std::vector<Pipeline> pipelines_;
  uint64_t last_ticket_ = 0;
  uint64_t allocated_bytes_ = 0;
  bool lost_ = false;
  bool silent_ = false;  // it may still be using what it was given
};

}  // namespace deltafin
