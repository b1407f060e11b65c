#include "store/layout.h"

#include <array>
#include <charconv>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace deltafin {
namespace {

constexpr std::string_view kLayersPrefix = "language_model.model.layers.";
constexpr std::string_view kExpertsInfix = ".block_sparse_moe.experts.";
constexpr std::array<std::string_view, kExpertParts> kExpertSuffixes = {
    ".w1.weight_packed", ".w1.weight_scale",  ".w2.weight_packed",
    ".w2.weight_scale",  ".w3.weight_packed", ".w3.weight_scale"};

TensorShape Shape(std::initializer_list<int64_t> dims) {
  TensorShape shape;
  for (int64_t dim : dims) shape.dims[shape.rank++] = dim;
  return shape;
}

// Collects the tensors whose names start with one prefix.
class Builder {
 public:
  explicit Builder(std::string prefix) : prefix_(std::move(prefix)) {}

  void Bf16Vector(SpineVector id, std::string_view name, int64_t size) {
    Vector(id, Tensor(name, DType::kBf16, Shape({size})), size);
  }
  void F32Vector(SpineVector id, std::string_view name, int64_t size) {
    Vector(id, Tensor(name, DType::kF32, Shape({size})), size);
  }
  void Vector(SpineVector id, TensorSpec tensor, int64_t size) {
    layout_.vectors.push_back({id, std::move(tensor), {}, size});
  }
  // The query of an attention residual: a norm [size] times a projection [1, size].
  void ResidualQuery(SpineVector id, std::string_view name, int64_t size) {
    layout_.vectors.push_back(
        {id, Tensor(format("{}_norm.weight", name), DType::kBf16, Shape({size})),
         Tensor(format("{}_proj.weight", name), DType::kBf16, Shape({1, size})), size});
  }
  void Bf16Matrix(SpineMatrix id, std::string_view name, int64_t rows, int64_t cols) {
    layout_.matrices.push_back(
        {id, Tensor(format("{}.weight", name), DType::kBf16, Shape({rows, cols}))});
  }
  TensorSpec Tensor(std::string_view name, DType dtype, TensorShape shape) const {
    return {prefix_ + std::string(name), dtype, shape, false};
  }
  LayerLayout Take() { return std::move(layout_); }

 private:
  std::string prefix_;
  LayerLayout layout_;
};

void AddKda(Builder& b, const ModelConfig& c) {
  const int64_t width = c.kda_width();
  for (const auto& [id, name] : {std::pair(SpineVector::kQConv, "self_attn.q_conv1d.weight"),
                                 std::pair(SpineVector::kKConv, "self_attn.k_conv1d.weight"),
                                 std::pair(SpineVector::kVConv, "self_attn.v_conv1d.weight")}) {
    b.Vector(id, b.Tensor(name, DType::kF32, Shape({width, 1, c.conv_kernel})),
             width * c.conv_kernel);
  }
  TensorSpec a_log = b.Tensor("self_attn.A_log", DType::kF32, Shape({c.kda_heads}));
  a_log.may_be_longer = true;
  b.Vector(SpineVector::kALog, std::move(a_log), c.kda_heads);
  b.F32Vector(SpineVector::kDtBias, "self_attn.dt_bias", width);
  b.F32Vector(SpineVector::kONorm, "self_attn.o_norm.weight", c.kda_head_dim);

  b.Bf16Matrix(SpineMatrix::kQProj, "self_attn.q_proj", width, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kKProj, "self_attn.k_proj", width, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kVProj, "self_attn.v_proj", width, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kFaProj, "self_attn.f_a_proj", c.kda_head_dim, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kFbProj, "self_attn.f_b_proj", width, c.kda_head_dim);
  b.Bf16Matrix(SpineMatrix::kBProj, "self_attn.b_proj", c.kda_heads, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kGProj, "self_attn.g_proj", width, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kOProj, "self_attn.o_proj", c.hidden_size, width);
}

void AddMla(Builder& b, const ModelConfig& c) {
  const int64_t query_dim = c.qk_nope_head_dim + c.qk_rope_head_dim;
  const int64_t out_width = c.mla_heads * c.v_head_dim;
  b.Bf16Vector(SpineVector::kQaNorm, "self_attn.q_a_layernorm.weight", c.q_lora_rank);
  b.Bf16Vector(SpineVector::kKvaNorm, "self_attn.kv_a_layernorm.weight", c.kv_lora_rank);

  b.Bf16Matrix(SpineMatrix::kQaProj, "self_attn.q_a_proj", c.q_lora_rank, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kQbProj, "self_attn.q_b_proj", c.mla_heads * query_dim, c.q_lora_rank);
  b.Bf16Matrix(SpineMatrix::kKvaProj, "self_attn.kv_a_proj_with_mqa",
               c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kKvbProj, "self_attn.kv_b_proj",
               c.mla_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank);
  b.Bf16Matrix(SpineMatrix::kGProj, "self_attn.g_proj", out_width, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kOProj, "self_attn.o_proj", c.hidden_size, out_width);
}

void AddDense(Builder& b, const ModelConfig& c) {
  b.Bf16Matrix(SpineMatrix::kDenseGate, "mlp.gate_proj", c.dense_intermediate_size, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kDenseUp, "mlp.up_proj", c.dense_intermediate_size, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kDenseDown, "mlp.down_proj", c.hidden_size, c.dense_intermediate_size);
}

void AddMoe(Builder& b, const ModelConfig& c) {
  b.F32Vector(SpineVector::kRouterBias, "block_sparse_moe.gate.e_score_correction_bias",
              c.num_experts);
  b.Bf16Vector(SpineVector::kRoutedNorm, "block_sparse_moe.routed_expert_norm.weight",
               c.latent_size);

  b.Bf16Matrix(SpineMatrix::kRouter, "block_sparse_moe.gate", c.num_experts, c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kRoutedDown, "block_sparse_moe.routed_expert_down_proj", c.latent_size,
               c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kSharedGate, "block_sparse_moe.shared_experts.gate_proj",
               c.shared_width(), c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kSharedUp, "block_sparse_moe.shared_experts.up_proj", c.shared_width(),
               c.hidden_size);
  b.Bf16Matrix(SpineMatrix::kSharedDown, "block_sparse_moe.shared_experts.down_proj", c.hidden_size,
               c.shared_width());
  b.Bf16Matrix(SpineMatrix::kRoutedUp, "block_sparse_moe.routed_expert_up_proj", c.hidden_size,
               c.latent_size);
}

// Takes a decimal number without sign or leading zeros from the front of `text`.
std::optional<int64_t> TakeNumber(std::string_view& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || text.front() == '-') return std::nullopt;
  const size_t length = static_cast<size_t>(end - text.data());
  if (length > 1 && text.front() == '0') return std::nullopt;
  text.remove_prefix(length);
  return value;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

LayerLayout LayoutOfLayer(const ModelConfig& config, int64_t layer) {
  DF_CHECK(0 <= layer && layer < config.num_layers);
  Builder b(format("{}{}.", kLayersPrefix, layer));
  const int64_t hidden = config.hidden_size;
  b.Bf16Vector(SpineVector::kInputNorm, "input_layernorm.weight", hidden);
  b.Bf16Vector(SpineVector::kPostAttentionNorm, "post_attention_layernorm.weight", hidden);
  if (layer > 0) b.ResidualQuery(SpineVector::kAttnResQuery, "self_attention_res", hidden);
  b.ResidualQuery(SpineVector::kMlpResQuery, "mlp_res", hidden);
  if (config.is_mla[static_cast<size_t>(layer)]) {
    AddMla(b, config);
  } else {
    AddKda(b, config);
  }
  if (config.IsMoe(layer)) {
    AddMoe(b, config);
  } else {
    AddDense(b, config);
  }
  return b.Take();
}

LayerLayout LayoutOfTop(const ModelConfig& config) {
  Builder b("language_model.");
  b.Bf16Vector(SpineVector::kFinalNorm, "model.norm.weight", config.hidden_size);
  b.ResidualQuery(SpineVector::kOutputResQuery, "model.output_attn_res", config.hidden_size);
  b.Bf16Matrix(SpineMatrix::kLmHead, "lm_head", config.vocab_size, config.hidden_size);
  return b.Take();
}

TensorSpec LayoutOfEmbedding(const ModelConfig& config) {
  return {"language_model.model.embed_tokens.weight", DType::kBf16,
          Shape({config.vocab_size, config.hidden_size}), false};
}

std::vector<TensorSpec> LayoutOfExpert(const ModelConfig& config, int64_t layer, int64_t expert) {
  DF_CHECK(config.IsMoe(layer) && layer < config.num_layers);
  DF_CHECK(0 <= expert && expert < config.num_experts);
  const std::string prefix = format("{}{}{}{}", kLayersPrefix, layer, kExpertsInfix, expert);
  const int64_t width = config.moe_intermediate_size;
  const int64_t latent = config.latent_size;
  std::vector<TensorSpec> parts;
  parts.reserve(kExpertParts);
  for (int part = 0; part < kExpertParts; ++part) {
    const bool is_down = part == 2 || part == 3;  // w2: [latent, width]; w1, w3: [width, latent]
    const int64_t rows = is_down ? latent : width;
    const int64_t cols = is_down ? width : latent;
    const int64_t row_bytes = part % 2 == 0 ? cols / 2 : cols / kMxfp4Block;
    parts.push_back({prefix + std::string(kExpertSuffixes[static_cast<size_t>(part)]), DType::kU8,
                     Shape({rows, row_bytes}), false});
  }
  return parts;
}

bool IsUnusedTensor(std::string_view name) {
  return TakePrefix(name, kLayersPrefix) &&
         (name == "0.self_attention_res_norm.weight" || name == "0.self_attention_res_proj.weight");
}

std::optional<ExpertTensorName> ParseExpertTensorName(std::string_view name) {
  if (!TakePrefix(name, kLayersPrefix)) return std::nullopt;
  const std::optional<int64_t> layer = TakeNumber(name);
  if (!layer || !TakePrefix(name, kExpertsInfix)) return std::nullopt;
  const std::optional<int64_t> expert = TakeNumber(name);
  if (!expert) return std::nullopt;
  for (int part = 0; part < kExpertParts; ++part) {
    if (name == kExpertSuffixes[static_cast<size_t>(part)]) {
      return ExpertTensorName{*layer, *expert, part};
    }
  }
  return std::nullopt;
}

int64_t NumElements(const TensorShape& shape) {
  int64_t count = 1;
  for (int i = 0; i < shape.rank; ++i) count *= shape.dims[i];
  return count;
}

}  // namespace deltafin
