#include "deltafin/engine.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "base/page_memory.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/machine_limits.h"
#include "engine/engine_impl.h"
#include "engine/resources.h"
#include "engine/session_impl.h"
#include "engine/speculation.h"
#include "io/memory_limits.h"
#include "io/read_choice.h"

namespace deltafin {
namespace {

constexpr int64_t kDefaultContextTokens = 8192;
constexpr int kMaxParallelSessions = 64;
// Drafts that nobody asked for may take this part of the memory.
constexpr uint64_t kDraftShare = 16;

std::string Bytes(uint64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000'000) return format("{:.2f} TB", b / 1e12);
  if (bytes >= 1'000'000'000) return format("{:.2f} GB", b / 1e9);
  if (bytes >= 1'000'000) return format("{:.1f} MB", b / 1e6);
  return format("{:.1f} kB", b / 1e3);
}

}  // namespace

std::unique_ptr<Engine> Engine::Open(const EngineOptions& options) {
  KeepHeapSmall();  // before the indexes are read, which takes twice what is kept
  return std::make_unique<EngineImpl>(options);
}

double MeasureMemoryBytesPerSecond(int threads) {
  ThreadPool pool(threads > 0 ? threads : UsableProcessors());
  return ReadBytesPerSecondOnce(pool);
}

EngineImpl::EngineImpl(const EngineOptions& options, const EngineParts& parts)
    : options_(options),
      model_files_(*parts.files, options.source, FolderFlags(options.model_dir, options.also_dirs)),
      files_(model_files_, options.model_dir, options.also_dirs),
      checkpoint_(Checkpoint::Open(files_, options.model_dir)),
      tokenizer_(Tokenizer::Load(options.model_dir)) {
  const ModelConfig& c = checkpoint_->config();
  if (tokenizer_->vocab_size() > c.vocab_size) {
    throw Error(ErrorCode::kCorrupt,
                format("{}: the tokenizer has {} tokens, but config.json says vocab_size {}",
                       options.model_dir, tokenizer_->vocab_size(), c.vocab_size));
  }
  stop_tokens_ = {static_cast<TokenId>(c.eos_token_id)};
  const TokenId document_end = tokenizer_->SpecialId("[EOS]");
  if (document_end != stop_tokens_[0]) stop_tokens_.push_back(document_end);

  if (options_.context_tokens == 0) {
    options_.context_tokens = std::min(kDefaultContextTokens, c.max_position_embeddings);
  }
  if (options_.context_tokens < 1 || options_.context_tokens > c.max_position_embeddings) {
    throw Error(ErrorCode::kInvalidArgument,
                format("context: expected 1 to {} tokens, got {}", c.max_position_embeddings,
                       options_.context_tokens));
  }
  const int threads = options_.threads != 0 ? options_.threads : UsableProcessors();
  if (threads < 1 || threads > 1024) {
    throw Error(ErrorCode::kInvalidArgument,
                format("threads: expected 1 to 1024, got {}", threads));
  }
  ChooseReads(parts);
  if (options_.parallel_sessions < 1 || options_.parallel_sessions > kMaxParallelSessions) {
    throw Error(ErrorCode::kInvalidArgument,
                format("parallel sessions: expected 1 to {}, got {}", kMaxParallelSessions,
                       options_.parallel_sessions));
  }
  SpineSource spine = ChooseSpine(files_, *checkpoint_, options_.spine, &spine_note_);
  spine_format_ = spine.format;
  info_.spine_bytes = spine.TotalBytes();
  ChooseDraftSize();
  int read_threads = 0;
  for (const DiskReads& disk : disks_) read_threads += disk.options.depth;
  const std::optional<CacheSpillOptions> spill = ChooseCacheSpill(c, options_, threads);
  gpu_ = ChooseGpu(options_);
  while (!Plan(spine, threads + read_threads, threads, spill)) {
  }
  max_logits_positions_ = MaxLogitsPositions(c, plan_.positions);
  info_.max_draft_tokens = std::min(info_.max_draft_tokens, max_logits_positions_ - 1);

  pool_ = std::make_unique<ThreadPool>(threads);
  MakeDevice();
  queue_ = model_files_.Wrap(MakeReadQueues(disks_));
  PhaseClock* const clock = options_.profile ? &clock_.emplace() : nullptr;
  plan_.spine.clock = clock;
  spine_ = MakeSpineStore(*checkpoint_, std::move(spine), *queue_, plan_.spine);
  experts_ = MakeExpertStore(
      *checkpoint_, *queue_,
      {plan_.expert_slots, options_.prefetch,
       parts.keep_heat ? JoinPath(options_.model_dir, ".deltafin/heat") : "", clock, gpu_device_,
       static_cast<int64_t>(gpu_expert_bytes_ / checkpoint_->expert_bytes())});
  if (spill) {
    if (options_.spill_dir.empty()) options_.spill_dir = JoinPath(options_.model_dir, ".deltafin");
    cache_spill_ =
        std::make_unique<CacheSpill>(c, options_.cache_format, *device_, *queue_,
                                     parts.files->CreateScratch(options_.spill_dir), *spill, clock);
  }
  model_ = std::make_unique<Model>(c, *spine_, *experts_, *device_, clock);
  FillInfo();
}

// False: what nobody asked for, and the budget is too small for, was given up.
bool EngineImpl::Plan(const SpineSource& spine, int all_threads, int compute_threads,
                      const std::optional<CacheSpillOptions>& spill) {
  const uint64_t draft_bytes = Speculation::Bytes(config(), info_.max_draft_tokens);
  DivideGpu(options_, BudgetBytes(ReadMemoryLimits(), options_.ram_bytes),
            GpuWorkingBytes(config(), options_, spill, draft_bytes), gpu_);
  const bool may_leave_gpu = options_.device == DeviceChoice::kAuto && gpu_.gpu != nullptr;
  if (may_leave_gpu && gpu_.weight_bytes == 0) {
    LeaveGpu("has no memory left for weights");
    return false;
  }
  try {
    plan_ = PlanEngine(*checkpoint_, spine, options_, all_threads, compute_threads, spill,
                       draft_bytes, gpu_);
    return true;
  } catch (const BudgetError&) {
    if (options_.max_draft_tokens == kAutoDraft && info_.max_draft_tokens > 0) {
      info_.max_draft_tokens = 0;
    } else if (may_leave_gpu) {
      LeaveGpu("needs more than the memory budget has room for");
      ChooseDraftSize();
    } else {
      throw;
    }
  }
  return false;
}

void EngineImpl::LeaveGpu(const std::string& why) {
  if (options_.on_notice) {
    options_.on_notice(format("the GPU {} {}; the CPU computes", gpu_.gpu->info().name, why));
  }
  gpu_ = {};
}

// What was read ahead may be on its way from a hub that is slow, or gone.
EngineImpl::~EngineImpl() { model_files_.EndFetches(); }

// The spine has its room in the GPU's memory, experts have what it leaves.
void EngineImpl::MakeDevice() {
  device_ = MakeCpuDevice(*pool_, ChooseCpuIsa(options_.cpu_isa));
  if (gpu_.gpu == nullptr) return;
  const uint64_t spine_bytes = SpineRoom(gpu_.weight_bytes, plan_.device_spine_bytes);
  gpu_expert_bytes_ = gpu_.weight_bytes - spine_bytes;
  auto device = std::make_unique<VulkanDevice>(
      *gpu_.gpu, std::move(device_), *pool_,
      VulkanDeviceOptions{spine_bytes, gpu_expert_bytes_, options_.on_notice,
                          gpu_.verdict.flushes_subnormals, gpu_.verdict.has_operators,
                          GpuJournalBytes(config(), options_)});
  gpu_device_ = device.get();
  plan_.spine.keeper = device.get();
  device_ = std::move(device);
}

// Measures each disk once (docs/disk.md).
void EngineImpl::ChooseReads(const EngineParts& parts) {
  std::vector<const ReadableFile*> shards;
  for (uint32_t shard = 0; shard < checkpoint_->num_shards(); ++shard) {
    shards.push_back(&checkpoint_->file(shard));
  }
  if (!parts.reads.empty()) {
    disks_ = parts.reads;
    return;
  }
  for (const DiskChoice& disk : ChooseReadsOfDisks(shards)) {
    ReadQueueOptions options = disk.choice.options;
    if (options_.on_notice) {
      // One line for a disk, not for each of its shards.
      options.on_notice = [tell = options_.on_notice,
                           told = std::make_shared<std::once_flag>()](const std::string& notice) {
        std::call_once(*told, [&] { tell(notice); });
      };
    }
    disks_.push_back({disk.disk, options});
    disk_bytes_per_second_ += disk.choice.bytes_per_second;
    if (!reads_note_.empty()) reads_note_ += "; ";
    reads_note_ += format(
        "{}, {}, {} deep, {}", EngineName(options.engine), ModeName(options.mode), options.depth,
        disk.choice.bytes_per_second > 0
            ? format("{:.2f} GB/s {}", disk.choice.bytes_per_second / 1e9, disk.choice.source)
            : disk.choice.source);
  }
}

EngineCounters EngineImpl::counters() const {
  EngineCounters counters;
  if (clock_) clock_->AddTo(counters);
  const SpineCounters spine = spine_->counters();
  counters.spine_bytes = spine.layer_bytes;
  counters.head_bytes = spine.head_bytes;
  counters.embedding_bytes = spine.embedding_bytes;
  counters.expert_bytes = experts_->counters().bytes_read();
  counters.context_bytes = cache_spill_ == nullptr ? 0 : cache_spill_->bytes_read();
  counters.network_bytes = model_files_.fetched_bytes();
  counters.disk_seconds = queue_->counters().busy_seconds;
  return counters;
}

// What drafts need must leave the weights their room: each draft token reads experts of its own.
void EngineImpl::ChooseDraftSize() {
  const int64_t wanted = options_.max_draft_tokens;
  if (wanted < kAutoDraft || wanted > kMaxDraftTokens) {
    throw Error(ErrorCode::kInvalidArgument,
                format("draft tokens: expected 0 to {}, got {}", kMaxDraftTokens, wanted));
  }
  const uint64_t budget =
      options_.ram_bytes != 0 ? options_.ram_bytes : ReadMemoryLimits().limit_bytes / 2;
  const bool fits = Speculation::Bytes(config(), kMaxDraftTokens) <= budget / kDraftShare;
  info_.max_draft_tokens = wanted != kAutoDraft ? wanted : fits ? kMaxDraftTokens : 0;
}

void EngineImpl::FillInfo() {
  const ModelConfig& c = config();
  info_.dir = options_.model_dir;
  info_.name = std::filesystem::weakly_canonical(options_.model_dir).filename().string();
  info_.num_layers = c.num_layers;
  info_.num_mla_layers = c.num_mla_layers();
  info_.hidden_size = c.hidden_size;
  info_.vocab_size = c.vocab_size;
  info_.num_experts = c.num_experts;
  info_.experts_per_token = c.experts_per_token;
  info_.context_tokens = options_.context_tokens;
  info_.max_context_tokens = c.max_position_embeddings;
  info_.context_tokens_in_ram = info_.context_tokens;
  if (cache_spill_ != nullptr) {
    info_.context_tokens_in_ram = cache_spill_->resident_pages() * kCachePageTokens;
  }
  info_.total_bytes = checkpoint_->total_bytes();
  info_.streamed_spine_bytes = plan_.streamed_spine_bytes;
  info_.expert_bytes = checkpoint_->expert_bytes();
  info_.parallel_sessions = options_.parallel_sessions;
  info_.snapshot_bytes = options_.snapshot_bytes;
  info_.empty_state_bytes = SequenceState::Bytes(c, options_.cache_format, 0);
  info_.num_shards = static_cast<int>(checkpoint_->num_shards());
  uint64_t moe_layers = 0;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) moe_layers += c.IsMoe(layer);
  weights_in_ram_ =
      plan_.spine_is_resident && static_cast<uint64_t>(plan_.expert_slots) >=
                                     moe_layers * static_cast<uint64_t>(c.num_experts);
  info_.bytes_per_token = info_.spine_bytes + moe_layers *
                                                  static_cast<uint64_t>(c.experts_per_token) *
                                                  checkpoint_->expert_bytes();
}

std::string EngineImpl::DescribeSpine() const {
  const std::string name = spine_format_ == WeightFormat::kInt8
                               ? "int8 (converted: not the released bits)"
                               : "bf16 (as released)";
  if (plan_.device_spine_bytes > 0) {
    return format("spine {}, {} on the GPU, {} in RAM{}", name, Bytes(plan_.device_spine_bytes),
                  Bytes(plan_.spine_bytes),
                  plan_.spine_is_resident ? "" : ", the rest read for every pass");
  }
  if (plan_.spine_is_resident) return format("spine {}, {} in RAM", name, Bytes(info_.spine_bytes));
  return format("spine {}, {} of {} in RAM, the rest read for every pass", name,
                Bytes(plan_.spine_bytes), Bytes(info_.spine_bytes));
}

std::string EngineImpl::DescribeGpu() const {
  return format("GPU: {} of its memory for weights; the CPU's bits ({})", Bytes(gpu_.weight_bytes),
                gpu_.verdict.arithmetic);
}

std::string EngineImpl::DescribeContext() const {
  std::string all = format("context {} tokens, latent cache {}", info_.context_tokens,
                           options_.cache_format == CacheFormat::kF32 ? "f32" : "bf16");
  if (cache_spill_ == nullptr) return all;
  const uint64_t most =
      static_cast<uint64_t>(info_.parallel_sessions) *
      (SequenceState::Bytes(config(), options_.cache_format, info_.context_tokens) -
       SequenceState::Bytes(config(), options_.cache_format, info_.context_tokens_in_ram));
  return format("{}, {} tokens of it in RAM, the others in a file in {} (up to {})", all,
                info_.context_tokens_in_ram, options_.spill_dir, Bytes(most));
}

std::vector<std::string> EngineImpl::Describe() const {
  const ModelInfo& i = info_;
  std::vector<std::string> lines = {
      format("model {}: {} layers ({} KDA, {} MLA), {} of {} experts per token, {} on disk", i.name,
             i.num_layers, i.num_layers - i.num_mla_layers, i.num_mla_layers, i.experts_per_token,
             i.num_experts, Bytes(i.total_bytes)),
      format("{}; {} expert slots, {}; {}; budget {} ({}); {}; exact numerics", DescribeSpine(),
             plan_.expert_slots, Bytes(plan_.expert_bytes), device_->Describe(),
             Bytes(plan_.budget_bytes), plan_.limited_by, DescribeContext()),
  };
  if (gpu_.gpu != nullptr) lines.push_back(DescribeGpu());
  if (options_.numerics == Numerics::kApprox) {
    lines.push_back(
        "approximate numerics: nothing is gained by them on this device, so all arithmetic is "
        "exact (docs/decoding.md)");
  }
  if (!reads_note_.empty()) lines.push_back("reads: " + reads_note_);
  if (!spine_note_.empty()) lines.push_back(spine_note_);
  for (std::string& line : model_files_.Reminders(*checkpoint_)) lines.push_back(std::move(line));
  return lines;
}

std::vector<PlanLine> EngineImpl::plan() const {
  std::vector<PlanLine> lines = {
      {"limit", plan_.limit_bytes, plan_.limit_name},
      {"available now", plan_.available_bytes,
       plan_.budget_bytes > plan_.available_bytes ? "less than the budget" : ""},
      {"left to the system", plan_.reserve_bytes, ""},
      {"budget", plan_.budget_bytes, plan_.limited_by == plan_.limit_name ? "" : plan_.limited_by},
      {"program", plan_.program_bytes, "code, indexes, tokenizer, stacks, lists"},
      {"session state", plan_.state_bytes,
       format("{}{}, drafts of {}",
              info_.parallel_sessions > 1 ? format("{} times ", info_.parallel_sessions) : "",
              DescribeContext(), info_.max_draft_tokens)},
      {"working memory", plan_.workspace_bytes, format("passes of {} positions", plan_.positions)},
      {"small tensors", plan_.tables_bytes, "norms, convolutions, gates, scales"},
      {"read ahead", plan_.buffer_bytes, "ring of the streamed spine"},
      {"spine", plan_.spine_bytes,
       plan_.spine_is_resident
           ? plan_.device_spine_bytes == 0 ? "all of it" : "what the GPU has not"
           : format("of {}", Bytes(info_.spine_bytes))},
      {"expert slots", plan_.expert_bytes, format("{} experts", plan_.expert_slots)},
      {"unused", plan_.budget_bytes - plan_.used_bytes(), ""},
  };
  if (plan_.snapshot_bytes > 0) {
    lines.insert(lines.end() - 1, {"kept states", plan_.snapshot_bytes, "of beginnings of texts"});
  }
  if (gpu_.gpu != nullptr) {
    lines.insert(lines.begin() + 5,
                 {"for the GPU", plan_.gpu_bytes,
                  gpu_.gpu->info().shares_ram ? "its memory, and what passes between the two"
                                              : "what passes between the two"});
    lines.push_back({"on the GPU: spine", plan_.device_spine_bytes, gpu_.gpu->info().name});
    lines.push_back({"on the GPU: experts", gpu_expert_bytes_, "the hottest of earlier runs"});
    lines.push_back({"on the GPU: working memory", gpu_.working_bytes, "states and scratch"});
  }
  return lines;
}

std::unique_ptr<Session> EngineImpl::NewSession() { return std::make_unique<SessionImpl>(*this); }

}  // namespace deltafin
