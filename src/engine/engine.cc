#include "deltafin/engine.h"

#include <algorithm>
#include <filesystem>

#include "base/format.h"
#include "device/cpu/cpu_device.h"
#include "engine/engine_impl.h"
#include "engine/session_impl.h"
#include "engine/speculation.h"
#include "io/memory_limits.h"

namespace deltafin {
namespace {

constexpr int64_t kDefaultContextTokens = 8192;
constexpr int64_t kMaxPositions = 512;
// A pass's scratch may take this part of the budget.
constexpr uint64_t kWorkspaceShare = 8;
// Drafts that nobody asked for may take this part.
constexpr uint64_t kDraftShare = 16;
constexpr uint64_t kMaxLogitsBytes = 64ull << 20;

std::string Bytes(uint64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000'000) return format("{:.2f} TB", b / 1e12);
  if (bytes >= 1'000'000'000) return format("{:.2f} GB", b / 1e9);
  if (bytes >= 1'000'000) return format("{:.1f} MB", b / 1e6);
  return format("{:.1f} kB", b / 1e3);
}

}  // namespace

std::unique_ptr<Engine> Engine::Open(const EngineOptions& options) {
  return std::make_unique<EngineImpl>(options);
}

EngineImpl::EngineImpl(const EngineOptions& options)
    : options_(options),
      checkpoint_(Checkpoint::Open(RealFileSystem(), options.model_dir)),
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
  const MemoryLimits limits = ReadMemoryLimits();
  const uint64_t about = options_.ram_bytes != 0 ? options_.ram_bytes : limits.limit_bytes / 2;
  ChoosePassSize(about);
  ChooseDraftSize(about);
  plan_ = PlanMemory(*checkpoint_, limits,
                     {options_.ram_bytes,
                      SequenceState::Bytes(c, options_.cache_format, options_.context_tokens) +
                          Speculation::Bytes(c, info_.max_draft_tokens),
                      Model::WorkspaceBytes(c, max_positions_, max_logits_positions_)});

  const int threads = options_.threads != 0 ? options_.threads : UsableProcessors();
  if (threads < 1 || threads > 1024) {
    throw Error(ErrorCode::kInvalidArgument,
                format("threads: expected 1 to 1024, got {}", threads));
  }
  pool_ = std::make_unique<ThreadPool>(threads);
  device_ = MakeCpuDevice(*pool_, ChooseCpuIsa(options_.cpu_isa));
  spine_ = MakeResidentSpineStore(*checkpoint_);
  queue_ = MakeReadQueue({});
  experts_ = MakeExpertStore(
      *checkpoint_, *queue_,
      {plan_.expert_slots, options_.prefetch, JoinPath(options_.model_dir, ".deltafin/heat")});
  model_ = std::make_unique<Model>(c, *spine_, *experts_, *device_);
  FillInfo();
}

// The largest power of two of positions whose scratch fits its share of the budget.
void EngineImpl::ChoosePassSize(uint64_t budget_bytes) {
  const ModelConfig& c = config();
  const int64_t logits_cap =
      std::max<int64_t>(1, static_cast<int64_t>(kMaxLogitsBytes / sizeof(float)) / c.vocab_size);
  for (max_positions_ = kMaxPositions;; max_positions_ /= 2) {
    max_logits_positions_ = std::min(max_positions_, logits_cap);
    const uint64_t bytes = Model::WorkspaceBytes(c, max_positions_, max_logits_positions_);
    if (bytes <= budget_bytes / kWorkspaceShare || max_positions_ == 1) return;
  }
}

// What drafts need must leave the weights their room: each draft token reads experts of its own.
void EngineImpl::ChooseDraftSize(uint64_t budget_bytes) {
  const int64_t wanted = options_.max_draft_tokens;
  if (wanted < kAutoDraft || wanted > kMaxDraftTokens) {
    throw Error(ErrorCode::kInvalidArgument,
                format("draft tokens: expected 0 to {}, got {}", kMaxDraftTokens, wanted));
  }
  info_.max_draft_tokens = wanted == kAutoDraft ? kMaxDraftTokens : wanted;
  const bool fits = Speculation::Bytes(config(), kMaxDraftTokens) <= budget_bytes / kDraftShare;
  if (wanted == kAutoDraft && !fits) info_.max_draft_tokens = 0;
  info_.max_draft_tokens = std::min(info_.max_draft_tokens, max_logits_positions_ - 1);
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
  info_.total_bytes = checkpoint_->total_bytes();
  info_.spine_bytes = plan_.spine_bytes;
  info_.expert_bytes = checkpoint_->expert_bytes();
  info_.num_shards = static_cast<int>(checkpoint_->num_shards());
  uint64_t moe_layers = 0;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) moe_layers += c.IsMoe(layer);
  info_.bytes_per_token = plan_.spine_bytes + moe_layers *
                                                  static_cast<uint64_t>(c.experts_per_token) *
                                                  checkpoint_->expert_bytes();
}

std::vector<std::string> EngineImpl::Describe() const {
  const ModelInfo& i = info_;
  return {
      format("model {}: {} layers ({} KDA, {} MLA), {} of {} experts per token, {} on disk", i.name,
             i.num_layers, i.num_layers - i.num_mla_layers, i.num_mla_layers, i.experts_per_token,
             i.num_experts, Bytes(i.total_bytes)),
      format(
          "spine bf16 (as released), {} in RAM; {} expert slots, {}; {}; budget {} ({}); context "
          "{} tokens, latent cache {}; exact numerics",
          Bytes(plan_.spine_bytes), plan_.expert_slots, Bytes(plan_.expert_bytes),
          device_->Describe(), Bytes(plan_.budget_bytes), plan_.limited_by, i.context_tokens,
          options_.cache_format == CacheFormat::kF32 ? "f32" : "bf16"),
  };
}

std::vector<PlanLine> EngineImpl::plan() const {
  const uint64_t used =
      plan_.state_bytes + plan_.workspace_bytes + plan_.spine_bytes + plan_.expert_bytes;
  return {
      {"limit", plan_.limit_bytes, plan_.limited_by},
      {"left to the system", plan_.reserve_bytes, ""},
      {"budget", plan_.budget_bytes, ""},
      {"session state", plan_.state_bytes,
       format("{} tokens of context, latent cache {}, drafts of {}", info_.context_tokens,
              options_.cache_format == CacheFormat::kF32 ? "f32" : "bf16", info_.max_draft_tokens)},
      {"working memory", plan_.workspace_bytes, format("passes of {} positions", max_positions_)},
      {"spine", plan_.spine_bytes, "resident"},
      {"expert slots", plan_.expert_bytes, format("{} experts", plan_.expert_slots)},
      {"unused", plan_.budget_bytes - std::min(plan_.budget_bytes, used), ""},
  };
}

std::unique_ptr<Session> EngineImpl::NewSession() { return std::make_unique<SessionImpl>(*this); }

}  // namespace deltafin
