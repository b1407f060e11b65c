#include "engine/resources.h"

#include <algorithm>

#include "base/format.h"
#include "base/page_memory.h"
#include "device/cpu/kernels.h"
#include "device/vulkan/vulkan_device.h"
#include "io/memory_limits.h"
#include "model/model.h"
#include "model/sequence_state.h"
#include "store/int8_spine.h"

namespace deltafin {
namespace {

constexpr int64_t kMaxPositions = 512;
constexpr uint64_t kMaxLogitsBytes = 64ull << 20;

// What the heap of a running process grows by besides the plan's lines: lists of a pass, text, the
// allocator's own slack. Measured with k3-nano (memory_budget_test): 3 MB; the release's lists of
// experts are larger.
constexpr uint64_t kHeapGrowthBytes = 16ull << 20;
// Of a thread's stack and the allocator's caches, what is touched, and what counts against an
// address space limit.
constexpr uint64_t kTouchedPerThread = 256ull << 10;
constexpr uint64_t kAddressesPerThread = (8ull << 20) + (64ull << 10);

int64_t PagesOf(const EngineOptions& options) {
  return (options.context_tokens + kCachePageTokens - 1) / kCachePageTokens;
}

uint64_t ProgramBytes(const MemoryLimits& limits, int threads) {
  TrimHeap();
  const ProcessMemory now = ReadProcessMemory();
  const auto all_threads = static_cast<uint64_t>(threads);
  if (limits.limited_by == "RLIMIT_AS") {
    return now.virtual_bytes + kHeapGrowthBytes + all_threads * kAddressesPerThread;
  }
  return now.resident_bytes + kHeapGrowthBytes + all_threads * kTouchedPerThread;
}

// What the kernels take for a while: packed activations, partial states of the attention for four
// units of work per thread, and for each thread a panel of widened weights and what experts or the
// values of a head need.
uint64_t KernelScratchBytes(const ModelConfig& c, int64_t positions, int threads) {
  constexpr int64_t kPadding = 16;
  const int64_t widest = std::max({c.hidden_size, c.dense_intermediate_size, c.kda_width(),
                                   c.mla_heads * c.v_head_dim, c.shared_width()});
  const int64_t at_a_time = std::min(positions, kPanelPositions);
  const int64_t units = 4 * threads + at_a_time;
  const int64_t latent = c.kv_lora_rank + c.qk_rope_head_dim + kPadding;
  const int64_t attention = 2 * units * c.mla_heads * latent;
  const int64_t hidden = c.experts_per_token * (c.moe_intermediate_size + kPackedPadding);
  const int64_t packed = positions * (widest + kPackedPadding + hidden);
  const int64_t values = at_a_time * (c.kv_lora_rank + kPackedPadding);
  const int64_t of_thread = kMatMulScratch + std::max(kExpertScratch, values);
  return static_cast<uint64_t>(attention + packed + threads * of_thread) * sizeof(float);
}

}  // namespace

SpineSource ChooseSpine(FileSystem& files, const Checkpoint& checkpoint, SpineFormat wanted,
                        std::string* note) {
  if (wanted == SpineFormat::kBf16) return ReleasedSpine(checkpoint);
  std::string why;
  const Int8SpineState state = FindInt8Spine(files, checkpoint, &why);
  if (state == Int8SpineState::kComplete) return OpenInt8Spine(files, checkpoint);
  if (wanted == SpineFormat::kInt8) {
    throw Error(ErrorCode::kNotFound,
                format("--spine int8: {} ({}); run: {}", Int8SpineFolder(checkpoint.dir()), why,
                       ConvertCommand(checkpoint.dir())));
  }
  if (state == Int8SpineState::kStale) *note = "the int8 spine is not used: " + why;
  return ReleasedSpine(checkpoint);
}

int64_t MaxLogitsPositions(const ModelConfig& config, int64_t positions) {
  const int64_t cap = static_cast<int64_t>(kMaxLogitsBytes / sizeof(float)) / config.vocab_size;
  return std::clamp<int64_t>(cap, 1, positions);
}

std::optional<CacheSpillOptions> ChooseCacheSpill(const ModelConfig& config,
                                                  const EngineOptions& options,
                                                  int compute_threads) {
  if (options.context_ram_bytes == kWholeContext || config.num_mla_layers() == 0) return {};
  const uint64_t page_of_all_layers = CacheSpill::PageBytes(config, options.cache_format) *
                                      static_cast<uint64_t>(config.num_mla_layers());
  const uint64_t share =
      options.context_ram_bytes / static_cast<uint64_t>(options.parallel_sessions);
  const auto resident = static_cast<int64_t>(share / page_of_all_layers);
  if (resident >= PagesOf(options)) return {};
  return CacheSpillOptions{resident, kMaxPositions, compute_threads};
}

// Scratch is what a layer's products and experts need for a pass, until the host waits for the GPU.
uint64_t GpuWorkingBytes(const ModelConfig& c, const EngineOptions& options,
                         const std::optional<CacheSpillOptions>& spill, uint64_t draft_bytes) {
  const uint64_t workspace =
      Model::WorkspaceBytes(c, kMaxPositions, MaxLogitsPositions(c, kMaxPositions));
  const int64_t context_tokens = spill ? 0 : options.context_tokens;
  return static_cast<uint64_t>(options.parallel_sessions) *
             SequenceState::Bytes(c, options.cache_format, context_tokens) +
         draft_bytes + workspace + std::min(2 * workspace, kMostGpuScratchBytes) +
         kMostGpuVectorBytes;
}

// Half of the states: each of them comes to the host after as many tokens as that holds.
uint64_t GpuJournalBytes(const ModelConfig& c, const EngineOptions& options) {
  return static_cast<uint64_t>(options.parallel_sessions) *
         SequenceState::Bytes(c, options.cache_format, 0) / 2;
}

MemoryPlan PlanEngine(const Checkpoint& checkpoint, const SpineSource& spine,
                      const EngineOptions& options, int all_threads, int compute_threads,
                      const std::optional<CacheSpillOptions>& spill, uint64_t draft_bytes,
                      const GpuChoice& gpu) {
  const ModelConfig& c = checkpoint.config();
  const MemoryLimits limits = ReadMemoryLimits();
  PlanRequest request;
  request.ram_bytes = options.ram_bytes;
  request.program_bytes = ProgramBytes(limits, all_threads);
  if (gpu.gpu != nullptr) {
    request.gpu_bytes = kGpuHostBytes;
    if (gpu.gpu->info().shares_ram) request.gpu_bytes += gpu.weight_bytes + gpu.working_bytes;
    request.device_bytes = PlannedSpineBytes(gpu.weight_bytes);
  }
  const auto sessions = static_cast<uint64_t>(options.parallel_sessions);
  request.state_bytes =
      sessions * SequenceState::Bytes(c, options.cache_format, options.context_tokens,
                                      spill ? spill->resident_pages : PagesOf(options)) +
      (spill ? CacheSpill::Bytes(c, options.cache_format, *spill) : 0) + draft_bytes;
  if (gpu.working_bytes != 0) request.gpu_bytes += GpuJournalBytes(c, options);
  request.snapshot_bytes = options.snapshot_bytes;
  request.min_positions = options.parallel_sessions;
  request.max_positions = kMaxPositions;
  request.pin_layers = options.pin_layers;
  request.workspace_bytes = [&c, compute_threads, sessions](int64_t positions) {
    // The embedding, a row of logits and the last one of every session are on the host besides.
    const int64_t host_floats =
        positions * c.hidden_size + (1 + static_cast<int64_t>(sessions)) * c.vocab_size;
    return Model::WorkspaceBytes(c, positions, MaxLogitsPositions(c, positions)) +
           KernelScratchBytes(c, positions, compute_threads) +
           static_cast<uint64_t>(host_floats) * sizeof(float);
  };
  return PlanMemory(checkpoint, spine, limits, request);
}

}  // namespace deltafin
