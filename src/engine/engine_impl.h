// The engine behind include/deltafin/engine.h. Internal to engine/.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/phase_clock.h"
#include "base/thread_pool.h"
#include "deltafin/engine.h"
#include "device/device.h"
#include "device/vulkan/vulkan_device.h"
#include "engine/gpu_choice.h"
#include "engine/session_file.h"
#include "io/read_queue.h"
#include "model/cache_spill.h"
#include "model/model.h"
#include "store/checkpoint.h"
#include "store/expert_store.h"
#include "store/joined_folders.h"
#include "store/memory_plan.h"
#include "store/model_files.h"
#include "store/spine_store.h"

namespace deltafin {

// What tests and benchmarks replace.
struct EngineParts {
  FileSystem* files = &RealFileSystem();  // of the weights; must outlive the engine
  std::vector<DiskReads> reads;           // empty: as the disks like it
  bool keep_heat = true;                  // across runs, beside the model
};

class EngineImpl : public Engine {
 public:
  explicit EngineImpl(const EngineOptions& options, const EngineParts& parts = {});
  ~EngineImpl() override;

  const ModelInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const std::vector<TokenId>& stop_tokens() const override { return stop_tokens_; }
  std::vector<std::string> Describe() const override;
  std::vector<PlanLine> plan() const override;
  std::unique_ptr<Session> NewSession() override;
  ExpertStoreCounters expert_counters() const override { return experts_->counters(); }
  std::vector<LayerExpertCounters> layer_expert_counters() const override {
    return experts_->layer_counters();
  }
  EngineCounters counters() const override;
  double disk_bytes_per_second() const override { return disk_bytes_per_second_; }
  void Preload(const std::function<bool()>& go_on) override { spine_->Preload(go_on); }

  // For sessions.
  const ModelConfig& config() const { return checkpoint_->config(); }
  Model& model() { return *model_; }
  Device& device() { return *device_; }
  // Null: the CPU alone.
  Gpu* gpu() { return gpu_.gpu.get(); }
  const VulkanDevice* gpu_device() const { return gpu_device_; }
  // What a saved session must have been computed with. Reads the shards' headers once.
  const SessionOrigin& session_origin();
  CacheFormat cache_format() const { return options_.cache_format; }
  // Null: the latent caches are in RAM.
  CacheSpill* cache_spill() { return cache_spill_.get(); }
  const MemoryPlan& memory_plan() const { return plan_; }
  const std::vector<DiskReads>& disks() const { return disks_; }
  // Positions of a pass that the plan has room for, and of those with logits.
  int64_t max_positions() const { return plan_.positions; }
  int64_t max_logits_positions() const { return max_logits_positions_; }
  // All of them: no pass reads from the disk once they are there.
  bool weights_in_ram() const { return weights_in_ram_; }

 private:
  void ChooseReads(const EngineParts& parts);
  void ChooseDraftSize();
  bool Plan(const SpineSource& spine, int all_threads, int compute_threads,
            const std::optional<CacheSpillOptions>& spill);
  void LeaveGpu(const std::string& why);
  void MakeDevice();
  void FillInfo();
  std::string DescribeSpine() const;
  std::string DescribeGpu() const;
  std::string DescribeContext() const;

  EngineOptions options_;
  ModelFiles model_files_;  // of one folder
  JoinedFolders files_;     // of all, over those
  std::once_flag origin_once_;
  SessionOrigin origin_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<TokenId> stop_tokens_;
  MemoryPlan plan_;
  std::vector<DiskReads> disks_;
  std::string reads_note_;  // for people: how the weights are read
  double disk_bytes_per_second_ = 0;
  std::optional<PhaseClock> clock_;
  WeightFormat spine_format_ = WeightFormat::kBf16;
  std::string spine_note_;  // for people; mostly empty
  int64_t max_logits_positions_ = 1;
  bool weights_in_ram_ = false;
  ModelInfo info_;
  std::unique_ptr<ThreadPool> pool_;
  GpuChoice gpu_;
  uint64_t gpu_expert_bytes_ = 0;
  std::unique_ptr<Device> device_;
  VulkanDevice* gpu_device_ = nullptr;  // device_, if that is one
  std::unique_ptr<ReadQueue> queue_;
  std::unique_ptr<CacheSpill> cache_spill_;
  std::unique_ptr<SpineStore> spine_;
  std::unique_ptr<ExpertStore> experts_;
  std::unique_ptr<Model> model_;
};

}  // namespace deltafin
