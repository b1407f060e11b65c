#include "device/vulkan/gpu.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/format.h"
#include "device/vulkan/shader_code.h"

namespace deltafin {
namespace {

// Most waits are shorter than it takes to wake a thread.
constexpr double kSpinSeconds = 3e-3;
constexpr double kSoftwareSpinSeconds = 300e-6;  // it needs the processor itself
constexpr uint32_t kPushBytes = 128;             // as much as every GPU has

// Push constants of shaders/product_job.glsl.
struct ProductPush {
  ProductJob only;
  VkDeviceAddress table = 0;
  uint64_t in_table = 0;
};
static_assert(sizeof(ProductPush) <= kPushBytes);

// What the build compiled of shaders/product.comp and product_one.comp (CMakeLists.txt): for each
// format from few positions to many, and from few rows.
struct ProductShape {
  WeightFormat format;
  uint32_t positions;  // of a lane set
  uint32_t rows;
  uint32_t row_sets;
  uint32_t position_sets;
  uint32_t most_rows;  // of a matrix; 0: any
};
constexpr ProductShape kShapes[] = {DELTAFIN_PRODUCT_SHAPES};

// For products of n positions with matrices of so many rows.
const ProductShape& ShapeFor(WeightFormat format, uint32_t n, uint32_t rows) {
  const ProductShape* best = nullptr;
  for (const ProductShape& shape : kShapes) {
    if (shape.format != format) continue;
    best = &shape;
    const bool has_rows = shape.most_rows == 0 || rows <= shape.most_rows;
    if (has_rows && n <= shape.positions * shape.position_sets) break;
  }
  DF_CHECK(best != nullptr);
  return *best;
}

// shaders/exact_product.comp: rows of a workgroup, and workgroups that share the work.
constexpr uint32_t kExactRows = 8;
constexpr uint32_t kMostExactRowGroups = 512;
constexpr uint32_t kMostExactPositionGroups = 64;
constexpr uint32_t kExactRowGroups = 16;  // of each of many
// shaders/product_in_place.comp: of a workgroup.
constexpr uint32_t kInPlaceRows = 8;
constexpr uint32_t kInPlacePositions = 4;

uint32_t Groups(uint64_t count, uint64_t of_group) {
  return static_cast<uint32_t>((count + of_group - 1) / of_group);
}

const char* FormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kMxfp4:
      return "mxfp4";
  }
  return "";
}

}  // namespace

// ---- Gpu ----

Gpu::Gpu(std::shared_ptr<const VulkanInstance> instance, size_t index)
    : instance_(std::move(instance)),
      physical_(instance_->gpus().at(index)),
      api_(instance_->api()) {
  if (!info().missing.empty()) {
    throw Error(ErrorCode::kUnsupported,
                format("GPU {} cannot be used: {}", info().name, info().missing));
  }
  try {
    CreateDevice();
  } catch (...) {
    Destroy();
    throw;
  }
}

Gpu::~Gpu() { Destroy(); }

void Gpu::Destroy() noexcept {
  if (device_ == nullptr || silent_) return;  // a silent GPU would be waited for
  if (api_.vkDeviceWaitIdle != nullptr) api_.vkDeviceWaitIdle(device_);
  for (const Pipeline& pipeline : pipelines_) {
    api_.vkDestroyPipeline(device_, pipeline.handle, nullptr);
  }
  clock_ = nullptr;
  if (layout_ != nullptr) api_.vkDestroyPipelineLayout(device_, layout_, nullptr);
  if (pool_ != nullptr) api_.vkDestroyCommandPool(device_, pool_, nullptr);
  if (timeline_ != nullptr) api_.vkDestroySemaphore(device_, timeline_, nullptr);
  if (api_.vkDestroyDevice != nullptr) api_.vkDestroyDevice(device_, nullptr);
  device_ = nullptr;
}

void Gpu::Check(VkResult result, const char* what) {
  if (result == VK_SUCCESS) return;
  if (result == VK_ERROR_DEVICE_LOST) {
    lost_ = true;
    throw GpuLost(format("the GPU {} was lost ({})", info().name, what));
  }
  const bool memory =
      result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY;
  throw Error(memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported,
              format("the GPU {}: {}: {}", info().name, what, VulkanResultName(result)));
}

void Gpu::CreateDevice() {
  const float priority = 1.0f;
  VkDeviceQueueCreateInfo queue{};
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueFamilyIndex = physical_.queue_family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkPhysicalDeviceVulkan12Features features12{};
  features12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  features12.bufferDeviceAddress = VK_TRUE;
  features12.timelineSemaphore = VK_TRUE;
  VkPhysicalDeviceFeatures2 features{};
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  features.pNext = &features12;
  features.features.shaderFloat64 = info().has_doubles;
  std::vector<const char*> extensions;
  if (physical_.has_memory_budget) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  if (physical_.is_portability_subset) extensions.push_back("VK_KHR_portability_subset");
  if (physical_.import_alignment != 0) {
    extensions.push_back(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
  }
  VkDeviceCreateInfo create{};
  create.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  create.pNext = &features;
  create.queueCreateInfoCount = 1;
  create.pQueueCreateInfos = &queue;
  create.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  create.ppEnabledExtensionNames = extensions.data();
  Check(api_.vkCreateDevice(physical_.handle, &create, nullptr, &device_), "opening it");
  LoadFunctions();
  api_.vkGetDeviceQueue(device_, physical_.queue_family, 0, &queue_);

  VkPhysicalDeviceMemoryProperties2 memory{};
  memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
  api_.vkGetPhysicalDeviceMemoryProperties2(physical_.handle, &memory);
  memory_ = memory.memoryProperties;

  VkSemaphoreTypeCreateInfo type{};
  type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
  type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
  VkSemaphoreCreateInfo semaphore{};
  semaphore.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
  semaphore.pNext = &type;
  Check(api_.vkCreateSemaphore(device_, &semaphore, nullptr, &timeline_), "making a semaphore");

  VkCommandPoolCreateInfo pool{};
  pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pool.queueFamilyIndex = physical_.queue_family;
  Check(api_.vkCreateCommandPool(device_, &pool, nullptr, &pool_), "making a command pool");

  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushBytes};
  VkPipelineLayoutCreateInfo layout{};
  layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  layout.pushConstantRangeCount = 1;
  layout.pPushConstantRanges = &range;
  Check(api_.vkCreatePipelineLayout(device_, &layout, nullptr, &layout_), "making a layout");
}

void Gpu::LoadFunctions() {
#define DELTAFIN_LOAD(function)                                                                   \
  api_.function = reinterpret_cast<PFN_##function>(api_.vkGetDeviceProcAddr(device_, #function)); \
  if (api_.function == nullptr) {                                                                 \
    throw Error(ErrorCode::kUnsupported,                                                          \
                format("the driver of the GPU {} has no function {}", info().name, #function));   \
  }
  DELTAFIN_VULKAN_DEVICE_FUNCTIONS(DELTAFIN_LOAD)
#undef DELTAFIN_LOAD
}

const char* Gpu::ArithmeticSuffix() const {
  switch (arithmetic_) {
    case GpuArithmetic::kFused:
      return "fused";
    case GpuArithmetic::kControls:
      return "controls";
    case GpuArithmetic::kEmulated:
      return "emulated";
  }
  return "";
}

VkPipeline Gpu::PipelineOf(std::string_view name) {
  for (const Pipeline& pipeline : pipelines_) {
    if (pipeline.name == name) return pipeline.handle;
  }
  const std::span<const ShaderCode> modules = ShaderModules();
  const auto code = std::find_if(modules.begin(), modules.end(),
                                 [&](const ShaderCode& module) { return module.name == name; });
  DF_CHECK(code != modules.end());
  VkShaderModuleCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  info.codeSize = code->words.size_bytes();
  info.pCode = code->words.data();
  VkShaderModule module = nullptr;
  Check(api_.vkCreateShaderModule(device_, &info, nullptr, &module), "loading a shader");
  VkComputePipelineCreateInfo pipeline{};
  pipeline.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  pipeline.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  pipeline.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  pipeline.stage.module = module;
  pipeline.stage.pName = "main";
  pipeline.layout = layout_;
  VkPipeline handle = nullptr;
  const VkResult result =
      api_.vkCreateComputePipelines(device_, nullptr, 1, &pipeline, nullptr, &handle);
  api_.vkDestroyShaderModule(device_, module, nullptr);
  Check(result, "compiling a shader");
  pipelines_.push_back({std::string(name), handle});
  return handle;
}

void Gpu::StartClock(bool by_kind) {
  if (physical_.clock_tick_ns == 0) return;
  clock_ = std::make_unique<GpuClock>(api_, device_, physical_.clock_tick_ns * 1e-9, by_kind);
  for (Commands& each : commands_) each.is_measured = false;
}

void Gpu::CollectTimes(uint64_t done) {
  if (!clock_) return;
  for (;;) {
    Commands* first = nullptr;
    for (Commands& each : commands_) {
      const bool is_ready = each.is_measured && each.ticket <= done;
      if (is_ready && (first == nullptr || each.ticket < first->ticket)) first = &each;
    }
    if (first == nullptr) return;
    first->is_measured = false;
    clock_->Collect(static_cast<size_t>(first - commands_.data()), use_);
  }
}

GpuCommands Gpu::Begin() {
  const uint64_t done = Progress();
  CollectTimes(done);
  auto free = std::find_if(commands_.begin(), commands_.end(),
                           [&](const Commands& commands) { return commands.ticket <= done; });
  if (free == commands_.end()) {
    VkCommandBufferAllocateInfo allocate{};
    allocate.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
    allocate.commandPool = pool_;
    allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    allocate.commandBufferCount = 1;
    VkCommandBuffer handle = nullptr;
    Check(api_.vkAllocateCommandBuffers(device_, &allocate, &handle), "making a command buffer");
    free = commands_.insert(commands_.end(), {handle, 0});
  }
  free->ticket = UINT64_MAX;  // until it is submitted
  VkCommandBufferBeginInfo begin{};
  begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  Check(api_.vkBeginCommandBuffer(free->handle, &begin), "beginning a command buffer");
  const auto slot = static_cast<size_t>(free - commands_.begin());
  if (clock_) clock_->Begin(free->handle, slot);
  return {*this, free->handle, slot};
}

uint64_t Gpu::Submit(const GpuCommands& commands) {
  if (faults_.submits_until_lost >= 0 && faults_.submits_until_lost-- == 0) lost_ = true;
  if (lost_) Check(VK_ERROR_DEVICE_LOST, "handing it work");
  // Results for the host, and for what is submitted after this.
  VkMemoryBarrier barrier{};
  barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_HOST_READ_BIT | VK_ACCESS_SHADER_READ_BIT |
                          VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                          VK_ACCESS_TRANSFER_WRITE_BIT;
  constexpr VkPipelineStageFlags kStages =
      VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  api_.vkCmdPipelineBarrier(commands.handle_, kStages, kStages | VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                            &barrier, 0, nullptr, 0, nullptr);
  if (clock_) clock_->End(commands.handle_, commands.slot_);
  Check(api_.vkEndCommandBuffer(commands.handle_), "ending a command buffer");
  const uint64_t ticket = last_ticket_ + 1;
  VkTimelineSemaphoreSubmitInfo values{};
  values.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
  values.signalSemaphoreValueCount = 1;
  values.pSignalSemaphoreValues = &ticket;
  VkSubmitInfo submit{};
  submit.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  submit.pNext = &values;
  submit.commandBufferCount = 1;
  submit.pCommandBuffers = &commands.handle_;
  submit.signalSemaphoreCount = 1;
  submit.pSignalSemaphores = &timeline_;
  Check(api_.vkQueueSubmit(queue_, 1, &submit, nullptr), "handing it work");
  last_ticket_ = ticket;
  commands_[commands.slot_].ticket = ticket;
  commands_[commands.slot_].is_measured = clock_ != nullptr;
  ++use_.submissions;
  return ticket;
}

uint64_t Gpu::Progress() {
  uint64_t done = 0;
  Check(api_.vkGetSemaphoreCounterValue(device_, timeline_, &done), "asking for its progress");
  return done;
}

void Gpu::Wait(uint64_t ticket) {
  if (lost_) Check(VK_ERROR_DEVICE_LOST, "waiting for it");
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  do {
    uint64_t done = 0;
    Check(api_.vkGetSemaphoreCounterValue(device_, timeline_, &done), "waiting for it");
    if (done < ticket) continue;
    use_.wait_seconds += seconds();
    CollectTimes(done);
    return;
  } while (seconds() < (info().kind == GpuKind::kSoftware ? kSoftwareSpinSeconds : kSpinSeconds));
  VkSemaphoreWaitInfo wait{};
  wait.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
  wait.semaphoreCount = 1;
  wait.pSemaphores = &timeline_;
  wait.pValues = &ticket;
  uint64_t done = Progress();
  VkResult result = VK_TIMEOUT;
  for (;;) {
    result = api_.vkWaitSemaphores(device_, &wait, faults_.silence_ns);
    if (result != VK_TIMEOUT) break;
    // What it was given before may take it longer than that, each of it less.
    if (const uint64_t before = std::exchange(done, Progress()); done > before) continue;
    lost_ = true;
    silent_ = true;
    throw GpuLost(format("the GPU {} did not answer for a minute", info().name));
  }
  Check(result, "waiting for it");
  use_.wait_seconds += seconds();
  CollectTimes(ticket);
}

void Gpu::WaitForAll() noexcept {
  if (!silent_) api_.vkDeviceWaitIdle(device_);
}

std::vector<uint32_t> Gpu::MemoryTypes(uint32_t allowed, MemoryUse use) const {
  std::vector<uint32_t> types = MemoryTypesFor(memory_, allowed, use, info().shares_ram);
  if (!types.empty()) return types;
  throw Error(ErrorCode::kUnsupported,
              format("the GPU {} has no memory of the kind that is needed", info().name));
}

std::vector<uint32_t> MemoryTypesFor(const VkPhysicalDeviceMemoryProperties& memory,
                                     uint32_t allowed, MemoryUse use, bool shares_ram) {
  constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr VkMemoryPropertyFlags kMapped =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  constexpr VkMemoryPropertyFlags kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  VkMemoryPropertyFlags needed = 0;
  VkMemoryPropertyFlags liked = 0;
  bool has_substitute = false;
  switch (use) {
    case MemoryUse::kWeights:
      needed = shares_ram ? kMapped : 0;
      liked = kLocal;
      break;
    case MemoryUse::kToGpu:
      needed = kMapped;
      liked = kLocal;  // where the host can write there, the GPU need not fetch
      has_substitute = true;
      break;
    case MemoryUse::kFromGpu:
      needed = kMapped;
      liked = kCached;
      has_substitute = true;
      break;
    case MemoryUse::kScratch:
      liked = kLocal;
      break;
  }
  std::vector<uint32_t> types;
  for (const VkMemoryPropertyFlags wanted : {needed | liked, needed}) {
    for (uint32_t i = 0; i < memory.memoryTypeCount; ++i) {
      const bool fits = (memory.memoryTypes[i].propertyFlags & wanted) == wanted;
      if ((allowed >> i & 1) == 0 || !fits) continue;
      if (!has_substitute) return {i};
      if (std::find(types.begin(), types.end(), i) == types.end()) types.push_back(i);
    }
  }
  return types;
}

// ---- GpuBuffer ----

GpuBuffer::GpuBuffer(Gpu& gpu, uint64_t bytes, MemoryUse use) : gpu_(&gpu), bytes_(bytes) {
  const VulkanApi& api = gpu.api_;
  if (gpu.faults_.most_bytes != 0 && gpu.allocated_bytes_ + bytes > gpu.faults_.most_bytes) {
    gpu.Check(VK_ERROR_OUT_OF_DEVICE_MEMORY, "taking memory");
  }
  VkBufferCreateInfo create{};
  create.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  create.size = bytes;
  create.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  gpu.Check(api.vkCreateBuffer(gpu.device_, &create, nullptr, &buffer_), "making a buffer");
  try {
    VkMemoryRequirements needs{};
    api.vkGetBufferMemoryRequirements(gpu.device_, buffer_, &needs);
    VkMemoryAllocateFlagsInfo flags{};
    flags.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO;
    flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
    VkMemoryAllocateInfo allocate{};
    allocate.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    allocate.pNext = &flags;
    allocate.allocationSize = needs.size;
    const uint32_t type =
        Take(allocate, gpu.MemoryTypes(needs.memoryTypeBits, use), "taking memory");
    const VkMemoryPropertyFlags properties = gpu.memory_.memoryTypes[type].propertyFlags;
    is_local_ = (properties & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) != 0;
    const bool mapped = use == MemoryUse::kToGpu || use == MemoryUse::kFromGpu ||
                        (use == MemoryUse::kWeights && gpu.info().shares_ram);
    if (mapped) {
      void* host = nullptr;
      gpu.Check(api.vkMapMemory(gpu.device_, memory_, 0, VK_WHOLE_SIZE, 0, &host),
                "mapping memory");
      host_ = static_cast<std::byte*>(host);
    }
  } catch (...) {
    Reset();
    throw;
  }
}

uint32_t GpuBuffer::Take(VkMemoryAllocateInfo allocate, std::span<const uint32_t> types,
                         const char* doing) {
  const VulkanApi& api = gpu_->api_;
  VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
  for (size_t i = 0; i < types.size() && result == VK_ERROR_OUT_OF_DEVICE_MEMORY; ++i) {
    allocate.memoryTypeIndex = types[i];
    result = api.vkAllocateMemory(gpu_->device_, &allocate, nullptr, &memory_);
  }
  gpu_->Check(result, doing);
  gpu_->Check(api.vkBindBufferMemory(gpu_->device_, buffer_, memory_, 0), "binding memory");
  VkBufferDeviceAddressInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
  info.buffer = buffer_;
  address_ = api.vkGetBufferDeviceAddress(gpu_->device_, &info);
  gpu_->allocated_bytes_ += bytes_;
  return allocate.memoryTypeIndex;
}

GpuBuffer& GpuBuffer::operator=(GpuBuffer&& other) noexcept {
  if (this != &other) {
    Reset();
    gpu_ = std::exchange(other.gpu_, nullptr);
    buffer_ = std::exchange(other.buffer_, nullptr);
    memory_ = std::exchange(other.memory_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    address_ = std::exchange(other.address_, 0);
    host_ = std::exchange(other.host_, nullptr);
    is_local_ = other.is_local_;
  }
  return *this;
}

// Nothing that was submitted may still use it.
void GpuBuffer::Reset() noexcept {
  if (gpu_ == nullptr || gpu_->silent_) return;
  const VulkanApi& api = gpu_->api_;
  if (address_ != 0) gpu_->allocated_bytes_ -= bytes_;
  if (buffer_ != nullptr) api.vkDestroyBuffer(gpu_->device_, buffer_, nullptr);
  if (memory_ != nullptr) api.vkFreeMemory(gpu_->device_, memory_, nullptr);
  gpu_ = nullptr;
}

// ---- GpuCommands ----

void GpuCommands::Copy(const GpuBuffer& to, uint64_t to_offset, const GpuBuffer& from,
                       uint64_t from_offset, uint64_t bytes) {
  const VkBufferCopy region{from_offset, to_offset, bytes};
  gpu_->api_.vkCmdCopyBuffer(handle_, from.handle(), to.handle(), 1, &region);
  const bool over_link = (from.host() != nullptr) != (to.host() != nullptr);
  if (over_link) gpu_->use_.link_bytes += bytes;
  if (gpu_->clock_) gpu_->clock_->Mark(handle_, slot_, over_link ? "copy over the link" : "copy");
}

void GpuCommands::CopyPieces(std::span<const Piece> pieces, uint64_t link_bytes) {
  constexpr uint32_t kGroupWords = 512;  // shaders/copy_pieces.comp
  constexpr uint32_t kMostGroups = 4096;
  DF_CHECK(pieces.size() <= kMostPieces);
  uint32_t most_words = 0;
  for (const Piece& piece : pieces) most_words = std::max(most_words, piece.words);
  Dispatch("copy_pieces", pieces.data(), pieces.size_bytes(),
           std::min(Groups(most_words, kGroupWords), kMostGroups),
           static_cast<uint32_t>(pieces.size()), 1);
  gpu_->use_.link_bytes += link_bytes;
}

void GpuCommands::Barrier() {
  VkMemoryBarrier barrier{};
  barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                          VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  constexpr VkPipelineStageFlags kStages =
      VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  gpu_->api_.vkCmdPipelineBarrier(handle_, kStages, kStages, 0, 1, &barrier, 0, nullptr, 0,
                                  nullptr);
  ++gpu_->use_.barriers;
}

std::string GpuCommands::NameFor(std::string_view shader) const {
  return format("{}_{}", shader, gpu_->ArithmeticSuffix());
}

void GpuCommands::Dispatch(std::string_view shader, const void* job, size_t bytes, uint32_t x,
                           uint32_t y, uint32_t z) {
  DF_CHECK(bytes <= kPushBytes);
  const VkPipeline pipeline = gpu_->PipelineOf(shader);
  const VulkanApi& api = gpu_->api_;
  api.vkCmdBindPipeline(handle_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  api.vkCmdPushConstants(handle_, gpu_->layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                         static_cast<uint32_t>(bytes), job);
  api.vkCmdDispatch(handle_, x, y, z);
  ++gpu_->use_.dispatches;
  if (gpu_->clock_) gpu_->clock_->Mark(handle_, slot_, shader);
}

void GpuCommands::Product(WeightFormat format, const ProductJob& job) {
  Products(format, 0, 1, job, job.n, job.n);
}

void GpuCommands::Products(WeightFormat weights, VkDeviceAddress table, uint32_t count,
                           const ProductJob& any, uint32_t n, uint32_t most_n) {
  const ProductShape& shape = ShapeFor(weights, n, any.rows);
  const bool emulated = gpu_->arithmetic() == GpuArithmetic::kEmulated;
  const uint32_t positions = shape.positions * shape.position_sets;
  const uint32_t rows = shape.row_sets * (emulated ? 1 : shape.rows);
  const ProductPush push{any, table, table != 0 ? 1u : 0u};
  Dispatch(NameFor(format("product_{}_{}x{}", FormatName(weights), positions, shape.rows)), &push,
           sizeof(push), Groups(most_n, positions), Groups(any.rows, rows), count);
}

void GpuCommands::ExactProduct(WeightFormat weights, const ProductJob& job) {
  const ProductPush push{job, 0, 0};
  Dispatch(format("exact_product_{}", FormatName(weights)), &push, sizeof(push),
           std::min(Groups(job.rows, kExactRows), kMostExactRowGroups),
           std::min(job.n, kMostExactPositionGroups), 1);
}

void GpuCommands::ExactProducts(WeightFormat weights, VkDeviceAddress table, uint32_t count,
                                uint32_t most_n) {
  const ProductPush push{{}, table, 1};
  Dispatch(format("exact_product_{}", FormatName(weights)), &push, sizeof(push), kExactRowGroups,
           std::min(most_n, kMostExactPositionGroups), count);
}

void GpuCommands::ProductsInPlace(VkDeviceAddress table, uint32_t count, const ProductJob& any,
                                  uint32_t most_n, bool exactly_too) {
  const ProductPush push{any, table, table != 0 ? 1u : 0u};
  const uint32_t positions = most_n == 1 ? 1 : kInPlacePositions;
  Dispatch(NameFor(format("product_in_place_{}", positions)), &push, sizeof(push),
           Groups(most_n, positions), Groups(any.rows, kInPlaceRows), count);
  if (!exactly_too) return;
  Dispatch("exact_product_in_place", &push, sizeof(push), kExactRowGroups,
           std::min(most_n, kMostExactPositionGroups), count);
}

}  // namespace deltafin
