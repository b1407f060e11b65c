// Writes made-up checkpoints: the files, their order, and what happens when it is interrupted.
#include "deltafin/synth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/thread_pool.h"
#include "deltafin/json.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/write_file.h"
#include "store/synth_config.h"
#include "store/synth_layout.h"
#include "store/synth_routing.h"
#include "store/synth_values.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// What one thread makes before it writes.
constexpr uint64_t kBatchBytes = uint64_t{8} << 20;
constexpr std::chrono::milliseconds kProgressInterval{200};
constexpr double kMaxSkew = 4;
constexpr double kReuse = 0.3;
constexpr const char* kMarker = ".deltafin/synth.json";
// Beyond what the files hold, for the folder and for others.
constexpr uint64_t kSpareBytes = uint64_t{256} << 20;

void CheckRange(const char* what, int64_t value, int64_t min, int64_t max) {
  if (min <= value && value <= max) return;
  throw Error(ErrorCode::kInvalidArgument,
              format("{}: expected {} to {}, got {}", what, min, max, value));
}

void CheckRange(const char* what, double value, double max) {
  if (0 <= value && value <= max) return;
  throw Error(ErrorCode::kInvalidArgument,
              format("{}: expected 0 to {}, got {}", what, max, value));
}

SynthOptions WithDefaults(SynthOptions options) {
  const bool nano = options.like == SynthLike::kNano;
  if (options.layers == 0) options.layers = nano ? 13 : options.skeleton ? 93 : 4;
  if (options.experts == 0) options.experts = nano ? 64 : 896;
  if (options.vocab == 0) options.vocab = nano ? 4608 : 163840;
  if (options.threads == 0) options.threads = UsableProcessors();
  CheckRange("layers", options.layers, 1, 1000);
  CheckRange("experts", options.experts, 1, 1024);
  CheckRange("vocab", options.vocab, 512, 1 << 20);
  CheckRange("threads", int64_t{options.threads}, 1, 1024);
  CheckRange("skew", options.skew, kMaxSkew);
  return options;
}

// What the bytes depend on.
std::string MarkerJson(const SynthOptions& options) {
  return Json{{"version", 1},
              {"like", options.like == SynthLike::kK3 ? "k3" : "nano"},
              {"layers", options.layers},
              {"experts", options.experts},
              {"vocab", options.vocab},
              {"seed", options.seed},
              {"skew", options.skew},
              {"reuse", *options.reuse},
              {"no_vision", options.no_vision},
              {"skeleton", options.skeleton}}
             .dump(2) +
         "\n";
}

// Bytes that one thread makes and writes at a time: blocks of tensors that lie side by side.
struct Block {
  size_t tensor = 0;
  uint64_t index = 0;  // within the tensor
  uint64_t bytes = 0;
};
struct Batch {
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  std::vector<Block> blocks;
};

std::vector<Batch> CutIntoBatches(const ShardPlan& plan, uint64_t offset) {
  std::vector<Batch> batches;
  for (size_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
    const uint64_t total = TensorBytes(plan.tensors[tensor]);
    for (uint64_t done = 0; done < total; done += SynthTensor::kBlockBytes) {
      const uint64_t bytes = std::min(SynthTensor::kBlockBytes, total - done);
      if (batches.empty() || batches.back().bytes + bytes > kBatchBytes) {
        batches.push_back({offset, 0, {}});
      }
      batches.back().blocks.push_back({tensor, done / SynthTensor::kBlockBytes, bytes});
      batches.back().bytes += bytes;
      offset += bytes;
    }
  }
  return batches;
}

// Shares the batches of one shard among threads while the caller reports.
class ShardWriter {
 public:
  ShardWriter(const ModelConfig& config, const ShardPlan& plan, const SynthStyle& style,
              NewFile& file, uint64_t data_begin)
      : config_(config), plan_(plan), style_(style), file_(file) {
    batches_ = CutIntoBatches(plan, data_begin);
  }

  // `report` is given the bytes written so far and may throw.
  template <class Report>
  void Run(int num_threads, Report&& report) {
    std::vector<std::jthread> threads;
    const StopOnExit stop{*this};
    for (int i = 0; i < num_threads; ++i) threads.emplace_back([this] { Work(); });
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kProgressInterval,
                              [&] { return num_done_ == batches_.size() || error_ != nullptr; })) {
      lock.unlock();
      report(done_bytes_.load());
      lock.lock();
    }
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  // The threads end early when the caller leaves.
  struct StopOnExit {
    ShardWriter& writer;
    ~StopOnExit() { writer.next_ = writer.batches_.size(); }
  };

  void Work() noexcept {
    try {
      std::vector<std::byte> buffer(kBatchBytes);
      for (size_t i; (i = next_++) < batches_.size();) {
        const Batch& batch = batches_[i];
        Fill(batch, buffer);
        file_.WriteAt(batch.offset, std::span(buffer).first(batch.bytes));
        done_bytes_ += batch.bytes;
        const std::lock_guard lock(mutex_);
        if (++num_done_ == batches_.size()) changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  void Fill(const Batch& batch, std::span<std::byte> buffer) const {
    for (const Block& block : batch.blocks) {
      const SynthTensor tensor(config_, plan_.tensors[block.tensor], style_);
      tensor.Fill(block.index, buffer.first(block.bytes));
      buffer = buffer.subspan(block.bytes);
    }
  }

  const ModelConfig& config_;
  const ShardPlan& plan_;
  const SynthStyle style_;
  NewFile& file_;
  std::vector<Batch> batches_;
  std::atomic<size_t> next_ = 0;
  std::atomic<uint64_t> done_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t num_done_ = 0;  // guarded by mutex_, as is error_
  std::exception_ptr error_;
};

class SynthWriter {
 public:
  explicit SynthWriter(const SynthOptions& options)
      : options_(WithDefaults(options)),
        config_json_(SynthConfigJson(options_)),
        config_(ModelConfig::Parse(config_json_, "config.json")),
        picked_(static_cast<double>(config_.experts_per_token) /
                static_cast<double>(config_.num_experts)),
        style_{options_.seed, options_.skew, ContextShare(ChosenReuse(), picked_)} {}

  SynthSize Size() const {
    SynthSize size;
    size.layers = options_.layers;
    size.experts = options_.experts;
    size.vocab = options_.vocab;
    size.num_shards = static_cast<int>(num_shards());
    for (int64_t shard = 0; shard < num_shards(); ++shard) {
      const ShardPlan plan = PlanShard(config_, shard, vision());
      const uint64_t head = SafetensorsHead(plan).size();
      size.file_bytes += head + DataBytes(plan);
      size.write_bytes += head + WeightBytes(plan);
    }
    size.free_bytes = FreeBytes();
    return size;
  }

  void Write() {
    if (options_.dir.empty()) throw Error(ErrorCode::kInvalidArgument, "no folder to write to");
    MakeFolders(options_.dir);
    Claim();
    const SynthSize size = Size();
    total_bytes_ = size.write_bytes;
    CheckSpace(size);
    for (int64_t shard = 0; shard < num_shards(); ++shard) WriteShard(shard);
    WriteSmallFile("model.safetensors.index.json", IndexJson(config_, vision()));
    WriteSmallFile("tiktoken.model", SynthRanks(config_));
    WriteSmallFile("tokenizer_config.json", SynthTokenizerConfigJson(config_));
    WriteSmallFile("generation_config.json", SynthGenerationConfigJson(config_));
    WriteSmallFile("config.json", config_json_);  // last: now it opens
    Report(total_bytes_);
  }

 private:
  // Sets options_.reuse. To two digits, as it is printed.
  double ChosenReuse() {
    const double most = std::floor(MaxReuse(picked_) * 100) / 100;
    if (!options_.reuse) options_.reuse = std::min(kReuse, most);
    CheckRange("reuse", *options_.reuse, most);
    return *options_.reuse;
  }

  VisionShards vision() const {
    return options_.no_vision ? VisionShards::kAbsent : VisionShards::kPresent;
  }
  int64_t num_shards() const { return NumShards(config_, vision()); }
  std::string PathOf(const std::string& name) const { return JoinPath(options_.dir, name); }
  void WriteSmallFile(const std::string& name, const std::string& text) const {
    WriteFileAtomically(PathOf(name), text);
  }
  // Vision stays a hole: text reads nothing of it.
  uint64_t WeightBytes(const ShardPlan& plan) const {
    return options_.skeleton || plan.is_vision ? 0 : DataBytes(plan);
  }

  // On the disk of the nearest folder that is there.
  uint64_t FreeBytes() const {
    std::error_code error;
    fs::path folder = fs::absolute(options_.dir.empty() ? "." : options_.dir, error);
    while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
    const fs::space_info space = fs::space(folder, error);
    return error ? 0 : space.available;
  }

  // Makes the folder ours, or finds that it is what an earlier call left.
  void Claim() {
    CheckFolder();
    MakeFolders(PathOf(".deltafin"));
    lock_.emplace(PathOf(".deltafin"));
    CheckFolder();  // as whoever had the lock left it
    const std::string marker = PathOf(kMarker);
    if (!fs::exists(marker)) WriteFileAtomically(marker, MarkerJson(options_));
  }

  void CheckFolder() const {
    if (fs::exists(PathOf("config.json"))) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("{}: already holds a checkpoint (config.json is there); delete it or "
                         "name another folder",
                         options_.dir));
    }
    const std::string marker = PathOf(kMarker);
    if (fs::exists(marker)) {
      if (ReadWholeFile(RealFileSystem(), marker, 1 << 16) == MarkerJson(options_)) return;
      throw Error(ErrorCode::kInvalidArgument,
                  format("{}: holds a part of a checkpoint with other options ({}); give those, or "
                         "delete the folder",
                         options_.dir, marker));
    }
    for (const auto& entry : fs::recursive_directory_iterator(options_.dir)) {
      const std::string name = entry.path().lexically_relative(options_.dir).string();
      if (name == ".deltafin" || name == ".deltafin/lock") continue;  // it was stopped at once
      throw Error(ErrorCode::kInvalidArgument,
                  format("{}: is not empty; name a new folder", options_.dir));
    }
  }

  void CheckSpace(const SynthSize& size) const {
    uint64_t missing = size.write_bytes;
    for (int64_t shard = 0; shard < num_shards(); ++shard) {
      const ShardPlan plan = PlanShard(config_, shard, vision());
      if (IsThere(plan)) missing -= SafetensorsHead(plan).size() + WeightBytes(plan);
    }
    if (missing + kSpareBytes <= size.free_bytes) return;
    throw Error(ErrorCode::kIo,
                format("{}: {:.1f} GB are to be written and the disk has {:.1f} GB left; choose "
                       "fewer layers or experts, or a skeleton",
                       options_.dir, static_cast<double>(missing) / 1e9,
                       static_cast<double>(size.free_bytes) / 1e9));
  }

  // NewFile gives a shard its name only when it is whole.
  bool IsThere(const ShardPlan& plan) const {
    std::error_code error;
    return fs::is_regular_file(PathOf(plan.file_name), error);
  }

  void WriteShard(int64_t shard) {
    const ShardPlan plan = PlanShard(config_, shard, vision());
    const std::string head = SafetensorsHead(plan);
    if (!IsThere(plan)) {
      NewFile file(PathOf(plan.file_name), head.size() + DataBytes(plan));
      file.WriteAt(0, std::as_bytes(std::span(head)));
      if (WeightBytes(plan) > 0) {
        ShardWriter writer(config_, plan, style_, file, head.size());
        writer.Run(options_.threads, [&](uint64_t bytes) { Report(done_bytes_ + bytes); });
      }
      file.Commit();
    }
    done_bytes_ += head.size() + WeightBytes(plan);
    Report(done_bytes_);
  }

  void Report(uint64_t bytes) const {
    if (!options_.on_progress) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (!options_.on_progress({bytes, total_bytes_, seconds})) {
      throw Error(ErrorCode::kCancelled,
                  format("{}: stopped; the same command goes on", options_.dir));
    }
  }

  SynthOptions options_;
  const std::string config_json_;
  const ModelConfig config_;
  const double picked_;  // part of the experts that a token picks
  const SynthStyle style_;
  const Clock::time_point begin_ = Clock::now();
  std::optional<FolderLock> lock_;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
};

}  // namespace

SynthSize SizeOfSynth(const SynthOptions& options) { return SynthWriter(options).Size(); }

void WriteSynth(const SynthOptions& options) { SynthWriter(options).Write(); }

}  // namespace deltafin
