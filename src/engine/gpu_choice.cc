#include "engine/gpu_choice.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "base/thread_pool.h"
#include "deltafin/devices.h"
#include "device/cpu/cpu_device.h"

namespace deltafin {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
// Of a GPU whose memory is the machine's: the part of that which it may take unasked.
constexpr uint64_t kSharedPart = 4;
// The GPU's memory is taken in chunks, which pieces of the spine do not fill to the last byte
// (device/vulkan/held_weights.cc): 256 MiB, of pieces of at most 9.
constexpr uint64_t kChunkBytes = uint64_t{256} << 20;
constexpr uint64_t kLostPart = 24;

// Other programs draw with it too.
uint64_t FreeForWeights(const Gpu& gpu) {
  const uint64_t free = gpu.FreeBytes();
  return free - std::min(free, std::max(2 * kGiB, free / 10));
}

// Vulkan is not asked on machines without any: that takes time and memory.
bool MayHaveGpu() {
#ifdef __APPLE__
  return true;
#else
  std::error_code error;
  for (const char* path : {"/dev/dri", "/dev/nvidia0", "/dev/dxg"}) {
    if (std::filesystem::exists(path, error)) return true;
  }
  return false;
#endif
}

int Rank(const GpuInfo& info) {
  switch (info.kind) {
    case GpuKind::kDiscrete:
      return 5;
    case GpuKind::kVirtual:
      return 4;
    case GpuKind::kIntegrated:
      return 3;
    case GpuKind::kOther:
      return 2;
    case GpuKind::kSoftware:
      return 1;
  }
  return 0;
}

GpuChoice Open(const std::shared_ptr<const VulkanInstance>& instance, size_t index) {
  GpuChoice choice;
  choice.gpu = std::make_unique<Gpu>(instance, index);
  ThreadPool pool(1);  // the memory plan is made before the engine's threads start
  choice.verdict = TestGpu(*choice.gpu, MakeCpuDevice(pool), pool);
  return choice;
}

// One that passes the self-test; throws Error(kUnsupported) otherwise.
GpuChoice OpenRight(const std::shared_ptr<const VulkanInstance>& instance, size_t index) {
  GpuChoice choice = Open(instance, index);
  if (choice.verdict.problem.empty()) return choice;
  throw Error(ErrorCode::kUnsupported, format("the GPU {} does not pass the self-test: {}",
                                              choice.gpu->info().name, choice.verdict.problem));
}

GpuChoice OpenNumber(const std::shared_ptr<const VulkanInstance>& instance, int number) {
  const size_t count = instance->gpus().size();
  if (number >= static_cast<int>(count)) {
    throw Error(ErrorCode::kUnsupported,
                format("there is no GPU {}: deltafin info --devices lists {}", number,
                       count == 1 ? "one" : format("0 to {}", count - 1)));
  }
  return OpenRight(instance, static_cast<size_t>(number));
}

// Throws Error(kUnsupported) with what is wrong with every one of them. Nothing where there is none
// that `any` asks for.
GpuChoice OpenBest(const std::shared_ptr<const VulkanInstance>& instance, bool any) {
  std::vector<GpuInfo> infos;
  std::string problems;
  const auto add_problem = [&](const std::string& problem) {
    problems += (problems.empty() ? "" : "; ") + problem;
  };
  for (const PhysicalGpu& gpu : instance->gpus()) {
    const GpuInfo& info = infos.emplace_back(gpu.info);
    if (info.missing.empty() || (info.shares_ram && !any)) continue;
    add_problem(format("the GPU {} cannot be used: {}", info.name, info.missing));
  }
  for (const size_t index : GpusByWorth(infos, any)) {
    try {
      return OpenRight(instance, index);
    } catch (const Error& error) {
      add_problem(error.what());
    }
  }
  if (!problems.empty()) throw Error(ErrorCode::kUnsupported, problems);
  return {};
}

}  // namespace

std::vector<size_t> GpusByWorth(std::span<const GpuInfo> gpus, bool any) {
  std::vector<size_t> order;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].missing.empty() && (any || !gpus[i].shares_ram)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(Rank(gpus[a]), gpus[a].free_bytes) >
           std::pair(Rank(gpus[b]), gpus[b].free_bytes);
  });
  return order;
}

GpuChoice ChooseGpu(const EngineOptions& options) {
  if (options.device == DeviceChoice::kCpu) return {};
  const bool is_auto = options.device == DeviceChoice::kAuto;
  if (is_auto && !MayHaveGpu()) return {};
  try {
    const std::shared_ptr<const VulkanInstance> instance = VulkanInstance::Create();
    if (!is_auto && instance->gpus().empty()) {
      throw Error(ErrorCode::kUnsupported, "Vulkan finds no GPU (is its driver installed?)");
    }
    return options.gpu_number >= 0 ? OpenNumber(instance, options.gpu_number)
                                   : OpenBest(instance, !is_auto);
  } catch (const Error& error) {
    if (!is_auto) throw Error(error.code(), format("--device gpu: {}", error.what()));
    if (options.on_notice) options.on_notice(format("{}; the CPU computes", error.what()));
    return {};
  }
}

void DivideGpu(const EngineOptions& options, uint64_t ram_bytes, uint64_t working_bytes,
               GpuChoice& choice) {
  if (choice.gpu == nullptr) return;
  const GpuInfo& info = choice.gpu->info();
  if (choice.verdict.has_operators) choice.working_bytes = working_bytes;
  const uint64_t free = info.shares_ram ? std::min(choice.gpu->FreeBytes(), ram_bytes / kSharedPart)
                                        : FreeForWeights(*choice.gpu);
  choice.weight_bytes = free - std::min(free, choice.working_bytes);
  if (options.gpu_bytes != 0) {
    choice.weight_bytes = std::min(options.gpu_bytes, choice.gpu->FreeBytes());
  }
}

uint64_t PlannedSpineBytes(uint64_t weight_bytes) {
  if (weight_bytes <= kChunkBytes) return weight_bytes;
  return weight_bytes - weight_bytes / kLostPart - kChunkBytes / kLostPart;
}

uint64_t SpineRoom(uint64_t weight_bytes, uint64_t device_spine_bytes) {
  if (device_spine_bytes <= kChunkBytes) return device_spine_bytes;
  return std::min(weight_bytes,
                  device_spine_bytes + device_spine_bytes / (kLostPart - 2) + kChunkBytes / 2);
}

std::vector<ComputeDevice> ListDevices(std::string* note) {
  std::vector<ComputeDevice> devices(1);
  const CpuIsa isa = AvailableCpuIsas().back();
  const int processors = UsableProcessors();
  devices[0] = {"cpu",
                std::string(CpuIsaName(isa)),
                format("{} processor{}", processors, processors == 1 ? "" : "s"),
                0,
                0,
                true,
                "exact: what the others are compared with"};
  try {
    const std::shared_ptr<const VulkanInstance> instance = VulkanInstance::Create();
    if (instance->gpus().empty()) *note = "Vulkan finds no GPU";
    for (size_t i = 0; i < instance->gpus().size(); ++i) {
      const GpuInfo& info = instance->gpus()[i].info;
      ComputeDevice device{format("gpu:{}", i),
                           info.name,
                           format("{}, Vulkan {}, {}{}{}", info.driver, info.vulkan,
                                  GpuKindName(info.kind), info.has_doubles ? ", doubles" : "",
                                  info.keeps_subnormals ? ", subnormals on request" : ""),
                           info.memory_bytes,
                           info.free_bytes,
                           false,
                           info.missing};
      if (info.missing.empty()) {
        try {
          const GpuVerdict verdict = Open(instance, i).verdict;
          device.usable = verdict.problem.empty();
          device.verdict = verdict.problem;
          if (device.usable) device.verdict = "exact: " + verdict.arithmetic;
        } catch (const Error& error) {
          device.verdict = error.what();
        }
      }
      devices.push_back(std::move(device));
    }
  } catch (const Error& error) {
    *note = error.what();
  }
  return devices;
}

}  // namespace deltafin
