// deltafin bench decode: whole tokens against the disk, the memory and the kernels of the machine.

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "base/format.h"
#include "base/page_memory.h"
#include "base/seconds_since.h"
#include "deltafin/bench.h"
#include "deltafin/session.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/machine_limits.h"
#include "engine/bench_machine.h"
#include "engine/bench_median.h"
#include "engine/engine_impl.h"
#include "engine/operator_cases.h"
#include "engine/resources.h"
#include "io/disk_probe.h"
#include "io/memory_limits.h"
#include "io/read_choice.h"
#include "store/memory_plan.h"

namespace deltafin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kEfficiencyTarget = 0.85;
constexpr double kSameSpeed = 0.97;  // more memory may be slower by noise
// Before anything is measured, experts should be there as they will be later on (all of them where
// the budget suffices): a prompt of random tokens in one pass, then tokens one by one.
constexpr int64_t kMostPromptTokens = 64;
constexpr int kWarmupTokens = 3;
// That are measured, with more tokens if need be, but no more than the context holds.
constexpr double kLeastSeconds = 5;
constexpr int kMostTokens = 100;
// A token reads for seconds: what a disk gives for a moment is not what it keeps up.
constexpr int kProbeRounds = 3;
constexpr int kProbeSpans = 128;
constexpr int kProbeSpansAtOnce = 16;
constexpr int kDemandRounds = 9;
constexpr int64_t kContext = 256;
static_assert(kMostPromptTokens + kWarmupTokens + kMostTokens < kContext);
// Of the memory that is free, the part that the largest budget may take.
constexpr double kMostOfFree = 0.8;
// Kimi K3, for the extrapolation.
constexpr int64_t kLayersOfTheRelease = 93;
constexpr int64_t kMlaLayersOfTheRelease = 24;
constexpr int64_t kVocabOfTheRelease = 163840;
constexpr int64_t kHiddenOfTheRelease = 7168;

// The memory, and the kernels by themselves for one position of weights that are in no cache.
struct MachineRates {
  double memory_bytes_per_second = 0;
  double spine_bytes_per_second = 0;
  double expert_bytes_per_second = 0;
  double kda_bytes_per_second = 0;  // of states, read and written
};

// On average, as tokens are measured: what else the host of this machine does hits both.
double SecondsOf(OperatorCase& subject) {
  constexpr double kEnough = 0.5;
  subject.Run();
  const auto start = Clock::now();
  int runs = 0;
  for (; runs == 0 || SecondsSince(start) < kEnough; ++runs) subject.Run();
  return SecondsSince(start) / runs;
}

// Keeps its memory: what is given back keeps the system busy for a while.
class MachineMeter {
 public:
  MachineMeter(ThreadPool& pool, WeightFormat spine)
      : pool_(pool),
        device_(MakeCpuDevice(pool)),
        matrix_(MakeMatMulCase(*device_, arena_, spine, 12288, kHiddenOfTheRelease, 1)),
        experts_(MakeExpertCase(*device_, arena_, 1)),
        kda_(MakeKdaCase(*device_, 1)) {}

  MachineRates Measure() {
    const auto rate = [](OperatorCase& subject) { return subject.bytes() / SecondsOf(subject); };
    return {ReadBytesPerSecond(pool_), rate(*matrix_), rate(*experts_), rate(*kda_)};
  }

 private:
  ThreadPool& pool_;
  const std::unique_ptr<Device> device_;
  WeightArena arena_;
  const std::unique_ptr<OperatorCase> matrix_;
  const std::unique_ptr<OperatorCase> experts_;
  const std::unique_ptr<OperatorCase> kda_;
};

// Of all threads of this process, those of the kernel's that read for it among them.
double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Reads with nothing else to do.
struct DiskRates {
  double bytes_per_second = 0;
  double processor_seconds_per_byte = 0;
};

// What the machine gave around one measurement.
struct Limits {
  MachineRates machine;
  DiskRates disk;
};

Limits MeanOf(const Limits& a, const Limits& b) {
  const auto mean = [](double x, double y) { return (x + y) / 2; };
  return {
      {mean(a.machine.memory_bytes_per_second, b.machine.memory_bytes_per_second),
       mean(a.machine.spine_bytes_per_second, b.machine.spine_bytes_per_second),
       mean(a.machine.expert_bytes_per_second, b.machine.expert_bytes_per_second),
       mean(a.machine.kda_bytes_per_second, b.machine.kda_bytes_per_second)},
      {mean(a.disk.bytes_per_second, b.disk.bytes_per_second),
       mean(a.disk.processor_seconds_per_byte, b.disk.processor_seconds_per_byte)},
  };
}

// What one token takes on average.
struct Decoded {
  Limits limits;
  double seconds = 0;
  double bytes_read = 0;
  double expert_bytes_read = 0;  // of them
  uint64_t resident_bytes = 0;   // of the spine, which are not read again
  double weight_bytes = 0;       // that the computation went through
  double expert_bytes = 0;       // of them
  double spine_wait = 0;
  double expert_wait = 0;
};

class DecodeBench {
 public:
  explicit DecodeBench(const DecodeBenchOptions& options)
      : options_(options),
        file_system_(RealFileSystem(), options.model_dir, options.also_dirs),
        checkpoint_(Checkpoint::Open(file_system_, options.model_dir)),
        pool_(options.threads > 0 ? options.threads : UsableProcessors()),
        spine_(ChooseSpine(file_system_, *checkpoint_, options.spine, &spine_note_)),
        spine_bytes_(spine_.TotalBytes()) {
    release_bytes_ = BytesOfTheRelease(spine_);
    for (uint32_t shard = 0; shard < checkpoint_->num_shards(); ++shard) {
      files_.push_back(&checkpoint_->file(shard));
    }
    for (const DiskChoice& disk : ChooseReadsOfDisks(files_)) {
      reads_.push_back({disk.disk, disk.choice.options});
    }
  }

  BenchReport Run() {
    report_.machine = DescribeMachine();
    MakeMachine();
    const std::vector<uint64_t> budgets = Budgets();
    if (options_.cold) {
      MeasureDemand();
      RunBudgets(budgets, false);
    }
    if (options_.warm && FillPageCache(budgets.back())) RunBudgets(budgets, true);
    return std::move(report_);
  }

 private:
  // Takes all of its memory before budgets are chosen: the plans of these count what is taken.
  void MakeMachine() {
    TrimHeap();
    const uint64_t before = ReadProcessMemory().resident_bytes;
    machine_.emplace(pool_, spine_.format);
    machine_->Measure();
    TrimHeap();
    own_bytes_ = std::max(before, ReadProcessMemory().resident_bytes) - before;
  }

  // Of a budget, without what this program needs in addition for its own measurements: weights,
  // what the read bandwidth is measured on, and the states of K3.
  double GibibytesOf(uint64_t budget) const {
    return (static_cast<double>(budget) - static_cast<double>(own_bytes_)) / (1 << 30);
  }

  EngineOptions OptionsOf(uint64_t ram_bytes) const {
    EngineOptions options;
    options.model_dir = options_.model_dir;
    options.also_dirs = options_.also_dirs;
    options.threads = options_.threads;
    options.ram_bytes = ram_bytes;
    options.context_tokens = kContext;
    options.spine = options_.spine;
    options.profile = true;
    return options;
  }

  std::vector<DiskReads> ReadsOf(bool warm) const {
    std::vector<DiskReads> reads = reads_;
    for (DiskReads& disk : reads) {
      disk.options.mode = warm ? ReadMode::kBuffered : ReadMode::kDirect;
    }
    return reads;
  }

  // Evenly from the least to what holds everything, as far as the machine has it.
  std::vector<uint64_t> Budgets() {
    uint64_t least = 0;
    try {
      EngineImpl(OptionsOf(1), Parts(false));
    } catch (const BudgetError& error) {
      // Program and heap differ a little from one opening to the next.
      least = error.least_bytes() + (uint64_t{32} << 20);
    }
    uint64_t all_experts = 0;
    const ModelConfig& config = checkpoint_->config();
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      if (!config.IsMoe(layer)) continue;
      all_experts += static_cast<uint64_t>(config.num_experts) * checkpoint_->expert_bytes();
    }
    // A twentieth for the room that reading takes.
    const uint64_t everything = least + (spine_bytes_ + all_experts) / 20 * 21;
    const MemoryLimits limits = ReadMemoryLimits();
    const auto free = static_cast<uint64_t>(
        kMostOfFree * static_cast<double>(std::min(limits.limit_bytes, limits.available_bytes)));
    const uint64_t most = std::max(least, std::min(everything, free));
    if (most < everything) {
      report_.notes.push_back(
          format("the model would use {:.1f} GB; the largest budget is what "
                 "this machine has free",
                 static_cast<double>(everything) / 1e9));
    }
    std::vector<uint64_t> budgets;
    const auto last = static_cast<uint64_t>(options_.budgets - 1);
    for (uint64_t i = 0; i <= last; ++i) {
      if (IsChosen(static_cast<int>(i) + 1)) budgets.push_back(least + (most - least) / last * i);
    }
    return budgets;
  }

  bool IsChosen(int number) const {
    const std::vector<int>& only = options_.only;
    return only.empty() || std::find(only.begin(), only.end(), number) != only.end();
  }

  EngineParts Parts(bool warm) const {
    EngineParts parts;
    parts.reads = ReadsOf(warm);
    parts.keep_heat = false;
    return parts;
  }

  // False, with a note, where the files do not fit beside the largest budget.
  bool FillPageCache(uint64_t largest_budget) {
    const MemoryLimits limits = ReadMemoryLimits();
    const uint64_t bytes = checkpoint_->total_bytes();
    // Of the budget, this process has a part already.
    const uint64_t usable = limits.available_bytes + ReadProcessMemory().resident_bytes;
    if (bytes + largest_budget > std::min(limits.limit_bytes, usable)) {
      report_.notes.push_back(
          "not measured warm: the page cache cannot hold the files beside the "
          "largest budget");
      return false;
    }
    std::vector<std::byte> block(size_t{8} << 20);
    for (const ReadableFile* file : files_) {
      for (uint64_t at = 0; at < file->size(); at += block.size()) {
        file->ReadAt(at,
                     std::span(block).first(std::min<uint64_t>(block.size(), file->size() - at)));
      }
    }
    return true;
  }

  DiskProbe MakeProbe() {
    DiskProbe probe(files_, std::max<uint64_t>(checkpoint_->expert_bytes(), 1 << 16), ++seed_);
    if (!probe.has_data()) {
      throw Error(ErrorCode::kNotFound,
                  format("{}: nothing of it is on the disk: decoding it measures nothing",
                         options_.model_dir));
    }
    return probe;
  }

  // The same queue, with nothing to do but reads of the experts' size, always enough at once.
  DiskRates MeasureDisk(bool warm) {
    DiskProbe probe = MakeProbe();
    if (warm) probe.KeepPageCache();
    const auto queue = MakeReadQueues(ReadsOf(warm));
    const double bytes = static_cast<double>(probe.span_bytes()) * kProbeSpans;
    std::vector<double> rates;
    const double processor_before = ProcessorSeconds();
    for (int round = 0; round < kProbeRounds; ++round) {
      rates.push_back(bytes / probe.Read(*queue, kProbeSpans, kProbeSpansAtOnce));
    }
    return {MedianOf(std::move(rates)),
            (ProcessorSeconds() - processor_before) / (kProbeRounds * bytes)};
  }

  Limits MeasureLimits(bool warm) { return {machine_->Measure(), MeasureDisk(warm)}; }

  // The experts of a layer all at once, until the last one is there, against reads without end.
  void MeasureDemand() {
    DiskProbe probe = MakeProbe();
    const auto queue = MakeReadQueues(ReadsOf(false));
    const auto picks = static_cast<int>(checkpoint_->config().experts_per_token);
    std::vector<double> parts;
    for (int round = 0; round < kDemandRounds; ++round) {
      const double demand = probe.Read(*queue, picks, picks) / picks;
      parts.push_back(probe.Read(*queue, kProbeSpans, kProbeSpansAtOnce) / kProbeSpans / demand);
    }
    Target(format("{} spans demanded at once, part of the disk's best rate", picks), kDemandTarget,
           MedianOf(std::move(parts)));
  }

  Decoded Decode(uint64_t ram_bytes, bool warm) {
    EngineImpl engine(OptionsOf(ram_bytes), Parts(warm));
    const auto session = engine.NewSession();
    std::mt19937 random(7);
    std::vector<TokenId> prompt(
        static_cast<size_t>(std::min(engine.max_positions(), kMostPromptTokens)));
    for (TokenId& token : prompt) {
      token = static_cast<TokenId>(random() % static_cast<uint32_t>(engine.info().vocab_size));
    }
    GenerateOptions generate;
    generate.stop_at_stop_tokens = false;
    generate.max_new_tokens = kWarmupTokens;
    session->Generate(prompt, generate);
    // With the engine open: memory that it gives back keeps the system busy for a while.
    const Limits limits_before = MeasureLimits(warm);
    generate.max_new_tokens = 1;
    session->Generate({}, generate);  // of which much has been read meanwhile
    const EngineCounters before = engine.counters();
    const uint64_t experts_before = engine.expert_counters().requested;
    const auto start = Clock::now();
    int tokens = 0;
    while (tokens < options_.tokens ||
           (tokens < kMostTokens && SecondsSince(start) < kLeastSeconds)) {
      session->Generate({}, generate);
      ++tokens;
    }
    Decoded decoded;
    decoded.seconds = SecondsSince(start) / tokens;
    const EngineCounters counters = engine.counters() - before;
    decoded.bytes_read = static_cast<double>(counters.bytes_read()) / tokens;
    decoded.expert_bytes_read = static_cast<double>(counters.expert_bytes) / tokens;
    decoded.resident_bytes = spine_bytes_ - engine.info().streamed_spine_bytes;
    decoded.expert_bytes =
        static_cast<double>(engine.expert_counters().requested - experts_before) *
        static_cast<double>(checkpoint_->expert_bytes()) / tokens;
    decoded.weight_bytes = static_cast<double>(spine_bytes_) + decoded.expert_bytes;
    decoded.spine_wait = counters.phase_seconds(Phase::kSpineWait) / tokens;
    decoded.expert_wait = counters.phase_seconds(Phase::kExpertWait) / tokens;
    decoded.limits = MeanOf(limits_before, MeasureLimits(warm));
    return decoded;
  }

  void RunBudgets(const std::vector<uint64_t>& budgets, bool warm) {
    const char* const name = warm ? "warm" : "cold";
    double worst = 1;
    double never_slower = 1;
    double last_seconds = 0;
    for (const uint64_t budget : budgets) {
      const Decoded decoded = Decode(budget, warm);
      const BenchResult result = ResultOf(name, budget, decoded);
      report_.results.push_back(result);
      if (options_.on_result) options_.on_result(result);
      report_.notes.push_back(
          format("{}, {:.2f} GiB: {} of {} bytes of the spine stay in RAM; {:.0f} bytes of experts "
                 "were read a token",
                 name, GibibytesOf(budget), decoded.resident_bytes, spine_bytes_,
                 decoded.expert_bytes_read));
      worst = std::min(worst, *result.ratio);
      if (last_seconds > 0) never_slower = std::min(never_slower, last_seconds / decoded.seconds);
      last_seconds = decoded.seconds;
      if (!warm && (budget == budgets.front() || budget == budgets.back())) {
        Extrapolate(budget, decoded);
      }
    }
    Target(format("decode efficiency, {}, least of {} budgets", name, budgets.size()),
           kEfficiencyTarget, worst);
    if (budgets.size() > 1) {
      Target(format("decode, {}: more RAM is never slower", name), kSameSpeed, never_slower);
    }
  }

  BenchResult ResultOf(const char* name, uint64_t budget, const Decoded& decoded) const {
    const ModelConfig& config = checkpoint_->config();
    const auto kda_bytes = static_cast<double>(
        (config.num_layers - config.num_mla_layers()) * config.kda_heads * config.kda_head_dim *
        config.kda_head_dim * 2 * static_cast<int64_t>(sizeof(float)));
    const MachineRates& machine = decoded.limits.machine;
    const DiskRates& disk_rates = decoded.limits.disk;
    const double disk = decoded.bytes_read / disk_rates.bytes_per_second;
    const double memory = decoded.weight_bytes / machine.memory_bytes_per_second;
    const double kernels = static_cast<double>(spine_bytes_) / machine.spine_bytes_per_second +
                           decoded.expert_bytes / machine.expert_bytes_per_second +
                           kda_bytes / machine.kda_bytes_per_second;
    const double reading =
        decoded.bytes_read * disk_rates.processor_seconds_per_byte / pool_.num_threads();
    BenchResult result;
    result.op = format("decode {}", name);
    result.format = spine_.format == WeightFormat::kInt8 ? "int8 spine" : "bf16 spine";
    result.shape = format("{} layers, {:.2f} GiB", config.num_layers, GibibytesOf(budget));
    result.positions = 1;
    result.threads = pool_.num_threads();
    result.seconds = decoded.seconds;
    const double least = std::max({disk, memory, kernels});
    result.bound = least == disk ? "disk" : least == memory ? "read bandwidth" : "kernels";
    const double bytes = least == disk ? decoded.bytes_read : decoded.weight_bytes;
    result.gb_per_s = bytes / decoded.seconds / 1e9;
    result.limit = bytes / least / 1e9;
    result.ratio = least / decoded.seconds;
    result.bytes_per_token = decoded.bytes_read;
    result.bound += format(
        " (seconds: disk {:.3f}, memory {:.3f}, kernels {:.3f}, reading {:.3f} "
        "of the processors, waited for spine {:.3f}, experts {:.3f}; GB/s: disk {:.2f}, memory "
        "{:.1f}, spine {:.1f}, "
        "experts {:.1f})",
        disk, memory, kernels, reading, decoded.spine_wait, decoded.expert_wait,
        disk_rates.bytes_per_second / 1e9, machine.memory_bytes_per_second / 1e9,
        machine.spine_bytes_per_second / 1e9, machine.expert_bytes_per_second / 1e9);
    return result;
  }

  // Weights of one token of the release, with the layers of this slice; 0 when it lacks a kind.
  double BytesOfTheRelease(const SpineSource& spine) const {
    const ModelConfig& config = checkpoint_->config();
    if (config.hidden_size != kHiddenOfTheRelease) return 0;
    double kda = 0, mla = 0, dense = 0;
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      const auto bytes = static_cast<double>(spine.LayerBytes(layer));
      (!config.IsMoe(layer)                        ? dense
       : config.is_mla[static_cast<size_t>(layer)] ? mla
                                                   : kda) = bytes;
    }
    if (kda == 0 || mla == 0 || dense == 0) return 0;
    const double head = static_cast<double>(spine.LayerBytes(config.num_layers)) *
                        kVocabOfTheRelease / static_cast<double>(config.vocab_size);
    const auto moe_layers = static_cast<double>(kLayersOfTheRelease - 1);
    return dense + (moe_layers - kMlaLayersOfTheRelease) * kda + kMlaLayersOfTheRelease * mla +
           head +
           moe_layers * static_cast<double>(config.experts_per_token) *
               static_cast<double>(checkpoint_->expert_bytes());
  }

  void Extrapolate(uint64_t budget, const Decoded& decoded) {
    if (release_bytes_ == 0) {
      report_.notes.push_back("not extrapolated to 93 layers: this is no slice of Kimi K3");
      return;
    }
    const double seconds = release_bytes_ / decoded.weight_bytes * decoded.seconds;
    report_.notes.push_back(
        format("extrapolated, not measured: 93 layers take {:.1f} GB of weights a token, which at "
               "the speed of the budget of {:.2f} GiB ({:.0f} % of the weights read from disk) is "
               "{:.1f} s a token",
               release_bytes_ / 1e9, GibibytesOf(budget),
               100 * decoded.bytes_read / decoded.weight_bytes, seconds));
  }

  void Target(const std::string& name, double target, double got) {
    report_.targets.push_back({name, target, got, got >= target});
  }

  const DecodeBenchOptions& options_;
  JoinedFolders file_system_;
  const std::unique_ptr<Checkpoint> checkpoint_;
  ThreadPool pool_;
  std::vector<const ReadableFile*> files_;
  std::vector<DiskReads> reads_;
  std::string spine_note_;
  const SpineSource spine_;
  std::optional<MachineMeter> machine_;
  uint64_t own_bytes_ = 0;  // of memory, that the meter keeps
  const uint64_t spine_bytes_;
  double release_bytes_ = 0;
  uint64_t seed_ = 0;
  BenchReport report_;
};

}  // namespace

BenchReport BenchDecode(const DecodeBenchOptions& options) {
  if (options.tokens < 1 || options.budgets < 2) {
    throw Error(ErrorCode::kInvalidArgument,
                format("bench decode: expected at least 1 token and 2 budgets, got {} and {}",
                       options.tokens, options.budgets));
  }
  for (const int number : options.only) {
    if (1 <= number && number <= options.budgets) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        format("bench decode: expected budgets from 1 to {}, got {}", options.budgets, number));
  }
  return DecodeBench(options).Run();
}

}  // namespace deltafin
