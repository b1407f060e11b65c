// Opens a model. Everything an application needs of it besides sessions (session.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "deltafin/engine_counters.h"
#include "deltafin/error.h"
#include "deltafin/expert_counters.h"
#include "deltafin/tokenizer.h"
#include "deltafin/types.h"

namespace deltafin {

class RangeSource;  // deltafin/hub.h
class Session;

inline constexpr uint64_t kWholeContext = ~uint64_t{0};

struct EngineOptions {
  std::string model_dir;
  int threads = 0;             // 0: every processor this process may use
  uint64_t ram_bytes = 0;      // 0: what the machine and its cgroups allow, less a reserve
  int64_t context_tokens = 0;  // a session may hold this many; 0: 8,192 or what the model allows
  int parallel_sessions = 1;   // sessions that there is room for at a time; 1 to 64
  // For copies of states: those that a scheduler keeps for later prompts, Session::Save.
  uint64_t snapshot_bytes = 0;
  CacheFormat cache_format = CacheFormat::kF32;
  // Of the latent caches of all sessions together so many bytes stay in RAM, an equal part for
  // each; the rest lies in a file without a name in spill_dir (docs/decoding.md).
  uint64_t context_ram_bytes = kWholeContext;
  std::string spill_dir;  // "": MODEL/.deltafin
  SpineFormat spine = SpineFormat::kAuto;
  Numerics numerics = Numerics::kExact;
  // Room for drafts of this many tokens (at most 8; docs/decoding.md); 0: none. kAutoDraft: 8 if
  // they take little of the memory, else none.
  int64_t max_draft_tokens = 0;
  Prefetch prefetch = Prefetch::kAuto;
  std::vector<std::string> also_dirs;  // where shards may lie besides model_dir, on other disks
  // At most so many layers' worth of the spine stays in RAM, what that leaves goes to experts; -1:
  // as the memory plan sees fit.
  int64_t pin_layers = -1;
  bool profile = false;  // adds up the time of each phase: EngineCounters::seconds
  // Hears one sentence now and then about something that works, but not as well as it could. Called
  // by any thread; must not throw.
  std::function<void(const std::string&)> on_notice = nullptr;
  // Fetches what the folder does not have (MakeHubSource); null: that is an error when it is
  // needed.
  std::shared_ptr<RangeSource> source = nullptr;
  DeviceChoice device = DeviceChoice::kCpu;
  int gpu_number = -1;     // kGpu: as ListDevices numbers them; -1: the best
  uint64_t gpu_bytes = 0;  // of its memory, for weights; 0: what is free, less a reserve
  std::string cpu_isa;     // "": the best; "plain", "avx2", "avx512", "neon" for comparisons
};

// A row of the memory plan.
struct PlanLine {
  std::string what;
  uint64_t bytes = 0;
  std::string note;
};

struct ModelInfo {
  std::string dir;
  std::string name;  // last part of the path
  int64_t num_layers = 0;
  int64_t num_mla_layers = 0;
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t context_tokens = 0;      // that the plan has room for
  int64_t max_context_tokens = 0;  // that the model was made for
  // Of a session's context; fewer than context_tokens: the others lie in a file.
  int64_t context_tokens_in_ram = 0;
  uint64_t total_bytes = 0;           // of the shards
  uint64_t spine_bytes = 0;           // matrices of the spine that is used
  uint64_t streamed_spine_bytes = 0;  // of these, read for every pass
  uint64_t expert_bytes = 0;          // of one expert
  uint64_t bytes_per_token = 0;       // weights that one decoded token touches
  int num_shards = 0;
  int64_t max_draft_tokens = 0;  // that the plan has room for
  int parallel_sessions = 1;
  uint64_t snapshot_bytes = 0;
  uint64_t empty_state_bytes = 0;  // of a session without tokens
};

// Immutable after Open. Thread-safe, but sessions of one engine run one at a time, or side by side
// in one scheduler (scheduler.h).
class Engine {
 public:
  // Throws Error: see error.h. Tells the heap of this process to give freed memory back (for good):
  // the memory plan would not hold otherwise.
  static std::unique_ptr<Engine> Open(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const ModelInfo& info() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  // Tokens that end a generation: end of message, and [EOS] where the vocabulary has it.
  virtual const std::vector<TokenId>& stop_tokens() const = 0;
  // One or two lines for people: model, spine, device, threads, RAM, numerics.
  virtual std::vector<std::string> Describe() const = 0;
  virtual std::vector<PlanLine> plan() const = 0;
  // Since the engine was opened, in all and by layer. Thread-safe.
  virtual ExpertStoreCounters expert_counters() const { return {}; }
  virtual std::vector<LayerExpertCounters> layer_expert_counters() const { return {}; }
  virtual EngineCounters counters() const { return {}; }
  // What the model's disks gave together when the way of reading was chosen; 0: not measured.
  virtual double disk_bytes_per_second() const { return 0; }
  // Reads the part of the spine that stays in RAM now, not at its first use. `go_on` is asked now
  // and then; false ends it. No session may run meanwhile. Throws Error when a read fails.
  virtual void Preload(const std::function<bool()>& /*go_on*/) {}
  // An empty timeline. The engine must outlive it.
  virtual std::unique_ptr<Session> NewSession() = 0;
};

// Bytes per second that so many threads (0: as EngineOptions) read from memory together. Takes 1
// GiB for some tenths of a second: to be called before a model is opened.
double MeasureMemoryBytesPerSecond(int threads);

}  // namespace deltafin
