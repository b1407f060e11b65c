// Which tensors a Kimi K3 checkpoint has: names, dtypes, shapes, and the order in which the forward
// pass uses them (spec section 2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "store/model_config.h"

namespace deltafin {

// The names of the tensors of the text model begin with it.
inline constexpr std::string_view kTextPrefix = "language_model.";

// Small tensors of a layer. The store widens them to fp32 once, when it reads them.
enum class SpineVector : uint8_t {
  kInputNorm,
  kPostAttentionNorm,
  kAttnResQuery,  // self_attention_res_norm * self_attention_res_proj
  kMlpResQuery,   // mlp_res_norm * mlp_res_proj
  // KDA
  kQConv,
  kKConv,
  kVConv,  // [channels, 4]
  kALog,   // [heads]; the checkpoint may pad it
  kDtBias,
  kONorm,
  // MLA
  kQaNorm,
  kKvaNorm,
  // MoE
  kRouterBias,
  kRoutedNorm,
  // top
  kFinalNorm,
  kOutputResQuery,  // output_attn_res_norm * output_attn_res_proj
  kCount,
};

// Matrices of the spine. Within a layer they are used in the order of this list.
enum class SpineMatrix : uint8_t {
  // KDA
  kQProj,
  kKProj,
  kVProj,
  kFaProj,
  kFbProj,
  kBProj,
  // MLA
  kQaProj,
  kQbProj,
  kKvaProj,
  kKvbProj,
  // both
  kGProj,
  kOProj,
  // dense MLP
  kDenseGate,
  kDenseUp,
  kDenseDown,
  // MoE
  kRouter,
  kRoutedDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kRoutedUp,
  // top
  kLmHead,
  kCount,
};

// One tensor that must exist, with what it must be.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kBf16;
  TensorShape shape;
  // Rank 1 only: the file may hold more values than `shape` says; the first ones count. The release
  // pads A_log from num_heads to head_dim.
  bool may_be_longer = false;
};

struct MatrixSpec {
  SpineMatrix id = SpineMatrix::kQProj;
  TensorSpec tensor;
};

// A small tensor, or a norm and the projection folded with it (`second`, empty name if none).
struct VectorSpec {
  SpineVector id = SpineVector::kInputNorm;
  TensorSpec tensor;
  TensorSpec second;
  int64_t size = 0;  // values in RAM (A_log: heads, whatever the file pads)
};

// Layer 0 has no kAttnResQuery: its two tensors are in the release and no formula reads them, so
// they are neither required nor checked (IsUnusedTensor).
struct LayerLayout {
  std::vector<VectorSpec> vectors;
  std::vector<MatrixSpec> matrices;  // in order of use
};

LayerLayout LayoutOfLayer(const ModelConfig& config, int64_t layer);
// Final norm, output residual query, lm_head.
LayerLayout LayoutOfTop(const ModelConfig& config);
TensorSpec LayoutOfEmbedding(const ModelConfig& config);
// w1 packed, w1 scale, w2 packed, w2 scale, w3 packed, w3 scale: the order of a span (spec 2.4).
inline constexpr int kExpertParts = 6;
std::vector<TensorSpec> LayoutOfExpert(const ModelConfig& config, int64_t layer, int64_t expert);

// True for the text tensors of the release that are never used: self_attention_res_* of layer 0.
bool IsUnusedTensor(std::string_view name);

// What the name of a routed expert's tensor says; empty when it is not such a name. The numbers are
// as written, not checked against a configuration.
struct ExpertTensorName {
  int64_t layer = 0;
  int64_t expert = 0;
  int part = 0;  // index into LayoutOfExpert
};
std::optional<ExpertTensorName> ParseExpertTensorName(std::string_view name);

int64_t NumElements(const TensorShape& shape);

}  // namespace deltafin
