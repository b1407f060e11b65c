// The engine behind include/deltafin/engine.h. Internal to engine/.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "deltafin/engine.h"
#include "device/device.h"
#include "engine/session_file.h"
#include "io/read_queue.h"
#include "model/model.h"
#include "store/checkpoint.h"
#include "store/expert_store.h"
#include "store/memory_plan.h"
#include "store/spine_store.h"

namespace deltafin {

class EngineImpl : public Engine {
 public:
  explicit EngineImpl(const EngineOptions& options);

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

  // For sessions.
  const ModelConfig& config() const { return checkpoint_->config(); }
  Model& model() { return *model_; }
  Device& device() { return *device_; }
  // What a saved session must have been computed with. Reads the shards' headers once.
  const SessionOrigin& session_origin();
  CacheFormat cache_format() const { return options_.cache_format; }
  // Positions of a pass that the plan has room for, and of those with logits.
  int64_t max_positions() const { return plan_.positions; }
  int64_t max_logits_positions() const { return max_logits_positions_; }
  // All of them: no pass reads from the disk once they are there.
  bool weights_in_ram() const { return weights_in_ram_; }

 private:
  void ChooseDraftSize();
  void FillInfo();
  std::string DescribeSpine() const;

  EngineOptions options_;
  std::once_flag origin_once_;
  SessionOrigin origin_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<TokenId> stop_tokens_;
  MemoryPlan plan_;
  WeightFormat spine_format_ = WeightFormat::kBf16;
  std::string spine_note_;  // for people; mostly empty
  int64_t max_logits_positions_ = 1;
  bool weights_in_ram_ = false;
  ModelInfo info_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ReadQueue> queue_;
  std::unique_ptr<SpineStore> spine_;
  std::unique_ptr<ExpertStore> experts_;
  std::unique_ptr<Model> model_;
};

}  // namespace deltafin
