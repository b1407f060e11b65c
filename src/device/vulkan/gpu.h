// One GPU, opened: memory, programs, and work handed to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deltafin/error.h"
#include "device/matrix.h"
#include "device/vulkan/gpu_clock.h"
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
  int64_t submits_until_lost = -1;       // -1: never
  uint64_t most_bytes = 0;               // of all buffers; 0: any
  uint64_t silence_ns = 60'000'000'000;  // after which it is lost
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

// Of the `allowed` types of memory those that will do, the best first. The GPU's own has no
// substitute; what the host writes need not lie there.
std::vector<uint32_t> MemoryTypesFor(const VkPhysicalDeviceMemoryProperties& memory,
                                     uint32_t allowed, MemoryUse use, bool shares_ram);

// Memory that a GPU can use, owned. The GPU must outlive it.
class GpuBuffer {
 public:
  GpuBuffer() = default;
  GpuBuffer(Gpu& gpu, uint64_t bytes, MemoryUse use);  // throws Error(kOutOfMemory), GpuLost
  // Memory of the host's that shaders read where it is (host_slots.cc); it must outlive this. Both
  // must be multiples of import_alignment. Throws the same, and Error(kUnsupported).
  GpuBuffer(Gpu& gpu, std::byte* host, uint64_t bytes);
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
  // What the constructors end with: the memory, of the first of these types that has any left, and
  // where it is. Returns the type. `doing` is for errors.
  uint32_t Take(VkMemoryAllocateInfo allocate, std::span<const uint32_t> types, const char* doing);
  void Reset() noexcept;

  Gpu* gpu_ = nullptr;
  VkBuffer buffer_ = nullptr;
  VkDeviceMemory memory_ = nullptr;
  uint64_t bytes_ = 0;
  VkDeviceAddress address_ = 0;
  std::byte* host_ = nullptr;
  bool is_local_ = false;
};

// A matrix product as the shaders are told of it (shaders/product_job.glsl).
struct ProductJob {
  static constexpr uint32_t kInRows = 1;
  static constexpr uint32_t kOutRows = 2;

  VkDeviceAddress weights = 0;
  VkDeviceAddress scales = 0;
  VkDeviceAddress x = 0;
  VkDeviceAddress plain_x = 0;
  VkDeviceAddress quanta = 0;
  VkDeviceAddress y = 0;
  VkDeviceAddress in_rows = 0;
  VkDeviceAddress out_rows = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint32_t n = 0;
  uint32_t y_stride = 0;
  int32_t least = 0;
  uint32_t lists = 0;  // which of in_rows and out_rows there are
};

// Commands that are being recorded. They may run at the same time, but for what a Barrier parts.
class GpuCommands {
 public:
  void Copy(const GpuBuffer& to, uint64_t to_offset, const GpuBuffer& from, uint64_t from_offset,
            uint64_t bytes);
  struct Piece {
    VkDeviceAddress from = 0;
    VkDeviceAddress to = 0;
    uint32_t words = 0;  // of four bytes
    uint32_t unused = 0;
  };
  static constexpr size_t kMostPieces = 5;
  // By a shader: what is small runs beside others, without turning from shaders to copies and back.
  // `link_bytes` of it leave the GPU's memory.
  void CopyPieces(std::span<const Piece> pieces, uint64_t link_bytes);
  // What comes before is done, and its results are there, for what comes after.
  void Barrier();
  void Product(WeightFormat format, const ProductJob& job);
  // `count` products whose jobs lie at `table`, of one format and size; `n` is what most of them
  // have, `most_n` the largest.
  void Products(WeightFormat format, VkDeviceAddress table, uint32_t count, const ProductJob& any,
                uint32_t n, uint32_t most_n);
  // What these products leave to double precision.
  void ExactProduct(WeightFormat format, const ProductJob& job);
  void ExactProducts(WeightFormat format, VkDeviceAddress table, uint32_t count, uint32_t most_n);
  // As Products, of MXFP4 that lies in memory of the host's as the checkpoint has it, or of `any`
  // alone where `table` is 0; `exactly_too`: and what they leave to double precision.
  void ProductsInPlace(VkDeviceAddress table, uint32_t count, const ProductJob& any,
                       uint32_t most_n, bool exactly_too);
  // The shader of this name with `job` as its push constants, in a grid of workgroups.
  template <class Job>
  void Run(std::string_view shader, const Job& job, uint32_t x, uint32_t y = 1, uint32_t z = 1) {
    Dispatch(shader, &job, sizeof(job), x, y, z);
  }
  // As above, of a shader that depends on the GPU's arithmetic.
  template <class Job>
  void RunArithmetic(std::string_view shader, const Job& job, uint32_t x, uint32_t y = 1,
                     uint32_t z = 1) {
    Dispatch(NameFor(shader), &job, sizeof(job), x, y, z);
  }

 private:
  friend class Gpu;
  GpuCommands(Gpu& gpu, VkCommandBuffer handle, size_t slot)
      : gpu_(&gpu), handle_(handle), slot_(slot) {}
  std::string NameFor(std::string_view shader) const;
  void Dispatch(std::string_view shader, const void* job, size_t bytes, uint32_t x, uint32_t y,
                uint32_t z);
  Gpu* gpu_;
  VkCommandBuffer handle_;
  size_t slot_;  // among those of the GPU
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
  uint64_t import_alignment() const { return physical_.import_alignment; }
  // From now on; a GPU that was lost on purpose is there again.
  void SetFaults(const GpuFaults& faults) {
    faults_ = faults;
    lost_ = false;
  }
  uint64_t FreeBytes() const { return instance_->FreeBytes(physical_); }
  void SetArithmetic(GpuArithmetic arithmetic) { arithmetic_ = arithmetic; }
  GpuArithmetic arithmetic() const { return arithmetic_; }
  // Measures what is submitted from now on; nothing may be under way. Where the GPU has no clock,
  // nothing happens.
  void StartClock(bool by_kind);
  const GpuUse& use() const { return use_; }

  // These throw GpuLost.
  GpuCommands Begin();
  // The ticket grows with each submission. What is submitted later sees the results, as after a
  // Barrier.
  uint64_t Submit(const GpuCommands& commands);
  // The last ticket that is done, without waiting.
  uint64_t Progress();
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
    bool is_measured = false;  // and its time is not collected
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
  // As MemoryTypesFor; throws Error(kUnsupported) when there is none.
  std::vector<uint32_t> MemoryTypes(uint32_t allowed, MemoryUse use) const;
  VkPipeline PipelineOf(std::string_view name);
  const char* ArithmeticSuffix() const;
  void CollectTimes(uint64_t done);

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
  std::unique_ptr<GpuClock> clock_;
  GpuUse use_;
  uint64_t last_ticket_ = 0;
  uint64_t allocated_bytes_ = 0;
  bool lost_ = false;
  bool silent_ = false;  // it may still be using what it was given
};

}  // namespace deltafin
