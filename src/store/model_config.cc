#include "store/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/format.h"
#include "deltafin/error.h"
#include "deltafin/json.h"

namespace deltafin {
namespace {

// Upper bounds, each many times what K3 has. The largest tensor that they allow has 2^46 elements,
// so that sizes in bytes cannot overflow.
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxWidth = int64_t{1} << 20;  // hidden, intermediate, latent, low ranks
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxExperts = 65536;
constexpr int64_t kMaxAllExperts = int64_t{1} << 20;  // of all layers: they are listed in memory
constexpr int64_t kMaxSharedExperts = 64;
constexpr int64_t kMaxPositions = int64_t{1} << 40;

std::string QuoteJson(const Json& value) {
  constexpr size_t kMaxLength = 80;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMaxLength) text = text.substr(0, kMaxLength) + "...";
  return text;
}

// One JSON object of the file, read field by field; every failure names file, field, expected, got.
class Fields {
 public:
  Fields(const Json& object, std::string file, std::string path)
      : object_(object), file_(std::move(file)), path_(std::move(path)) {}

  [[noreturn]] void Fail(ErrorCode code, const std::string& key, const std::string& what) const {
    throw Error(code, format("{}: {}{} {}", file_, path_, key, what));
  }

  // Null when the field is absent or null.
  const Json* Find(const std::string& key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  const Json& Get(const std::string& key, const std::string& expected) const {
    const auto it = object_.find(key);
    if (it == object_.end()) Fail(ErrorCode::kCorrupt, key, "is missing, expected " + expected);
    return *it;
  }

  Fields Object(const std::string& key) const {
    const Json& value = Get(key, "an object");
    if (!value.is_object()) Mismatch(key, "an object", value);
    return Fields(value, file_, path_ + key + ".");
  }

  int64_t Int(const std::string& key, int64_t min, int64_t max) const {
    const std::string expected = format("an integer from {} to {}", min, max);
    return IntOf(Get(key, expected), key, expected, min, max);
  }

  std::vector<int64_t> IntList(const std::string& key, int64_t min, int64_t max) const {
    const std::string expected = format("a list of integers from {} to {}", min, max);
    const Json& list = Get(key, expected);
    if (!list.is_array()) Mismatch(key, expected, list);
    std::vector<int64_t> values;
    values.reserve(list.size());
    for (const Json& value : list) values.push_back(IntOf(value, key, expected, min, max));
    return values;
  }

  // In [min, max] as a float.
  float Number(const std::string& key, float min, float max) const {
    const std::string expected = format("a number from {} to {}", min, max);
    return NumberOf(Get(key, expected), key, expected, min, max);
  }

  // The same, or null.
  float NumberOr(const std::string& key, float if_null, float min, float max) const {
    const std::string expected = format("null or a number from {} to {}", min, max);
    const Json& value = Get(key, expected);
    return value.is_null() ? if_null : NumberOf(value, key, expected, min, max);
  }

  bool Bool(const std::string& key) const {
    const Json& value = Get(key, "true or false");
    if (!value.is_boolean()) Mismatch(key, "true or false", value);
    return value.get<bool>();
  }

  // Fields with a single value in K3. Another one is another model.
  void Demand(const std::string& key, const Json& only) const {
    const Json& value = Get(key, QuoteJson(only));
    if (value != only) Unsupported(key, QuoteJson(only), value);
  }
  void DemandIfPresent(const std::string& key, const Json& only) const {
    const Json* value = Find(key);
    if (value != nullptr && *value != only) Unsupported(key, QuoteJson(only), *value);
  }
  void DemandNone(const std::string& key) const {
    const Json* value = Find(key);
    if (value != nullptr) Unsupported(key, "none or null", *value);
  }

  [[noreturn]] void Unsupported(const std::string& key, const std::string& expected,
                                const Json& got) const {
    Fail(ErrorCode::kUnsupported, key,
         format("is {}, expected {}: Kimi K3 does not have this feature, and no other model is "
                "supported",
                QuoteJson(got), expected));
  }

  const Json& json() const { return object_; }

 private:
  [[noreturn]] void Mismatch(const std::string& key, const std::string& expected,
                             const Json& got) const {
    Fail(ErrorCode::kCorrupt, key, format("is {}, expected {}", QuoteJson(got), expected));
  }

  int64_t IntOf(const Json& value, const std::string& key, const std::string& expected, int64_t min,
                int64_t max) const {
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()}
                          : value.is_number_integer();
    if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
      Mismatch(key, expected, value);
    }
    return value.get<int64_t>();
  }

  float NumberOf(const Json& value, const std::string& key, const std::string& expected, float min,
                 float max) const {
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    // Negated so that NaN fails. Compared before narrowing: a double may not fit a float.
    if (!(number >= double{min} && number <= double{max})) Mismatch(key, expected, value);
    const float narrowed = static_cast<float>(number);
    if (!(narrowed >= min && narrowed <= max)) Mismatch(key, expected, value);
    return narrowed;
  }

  const Json& object_;
  std::string file_;
  std::string path_;  // "text_config."
};

// Features that change what the forward pass computes and that K3 does not have. Ignoring one would
// give fluent nonsense.
void RefuseOtherFeatures(const Fields& text) {
  text.Demand("model_type", "kimi_linear");
  text.Demand("hidden_act", "situ");
  text.Demand("mla_use_nope", true);
  text.Demand("mla_use_output_gate", true);
  text.Demand("latent_moe_use_norm", true);
  text.Demand("moe_router_activation_func", "sigmoid");
  for (const char* rope : {"rope_theta", "rope_scaling", "rope_parameters"}) text.DemandNone(rope);
  text.DemandIfPresent("tie_word_embeddings", false);
  text.DemandIfPresent("num_nextn_predict_layers", 0);

  // The official code restricts the choice to groups only if both hold (spec section 10).
  if (text.Find("num_expert_group") != nullptr) {
    const int64_t groups = text.Int("num_expert_group", 1, kMaxExperts);
    if (groups > 1 && groups > text.Int("topk_group", 1, kMaxExperts)) {
      text.Unsupported("num_expert_group", "1", groups);
    }
  }
}

void CheckQuantization(const Fields& quantization) {
  constexpr const char* kFormat = "mxfp4-pack-quantized";
  quantization.Demand("quant_method", "compressed-tensors");
  quantization.Demand("format", kFormat);
  quantization.DemandIfPresent("quantization_status", "compressed");
  quantization.DemandNone("kv_cache_scheme");
  const Fields groups = quantization.Object("config_groups");
  if (groups.json().size() != 1) {
    quantization.Unsupported("config_groups", "one group", groups.json());
  }
  const Fields group = groups.Object(groups.json().begin().key());
  group.DemandIfPresent("format", kFormat);
  group.Demand("targets", Json::array({"Linear"}));
  group.DemandNone("input_activations");
  group.DemandNone("output_activations");
  const Fields weights = group.Object("weights");
  weights.Demand("num_bits", 4);
  weights.Demand("type", "float");
  weights.Demand("strategy", "group");
  weights.Demand("group_size", kMxfp4Block);
  weights.Demand("symmetric", true);
  weights.DemandIfPresent("dynamic", false);
  weights.DemandIfPresent("scale_dtype", "torch.uint8");
  weights.DemandNone("actorder");
  weights.DemandNone("block_structure");
}

// The file counts layers from 1; together the two lists must hold every layer once.
std::vector<bool> ParseLayerKinds(const Fields& linear, int64_t num_layers) {
  std::vector<bool> is_mla(static_cast<size_t>(num_layers));
  std::vector<bool> seen(static_cast<size_t>(num_layers));
  for (const bool mla : {false, true}) {
    const char* key = mla ? "full_attn_layers" : "kda_layers";
    for (int64_t number : linear.IntList(key, 1, num_layers)) {
      const size_t layer = static_cast<size_t>(number - 1);
      if (seen[layer]) {
        linear.Fail(ErrorCode::kCorrupt, key,
                    format("lists layer {} a second time: kda_layers and full_attn_layers must "
                           "hold each of the {} layers once",
                           number, num_layers));
      }
      seen[layer] = true;
      is_mla[layer] = mla;
    }
  }
  const auto absent = std::find(seen.begin(), seen.end(), false);
  if (absent != seen.end()) {
    linear.Fail(ErrorCode::kCorrupt, "kda_layers",
                format("and full_attn_layers both lack layer {}: they must hold each of the {} "
                       "layers once",
                       absent - seen.begin() + 1, num_layers));
  }
  return is_mla;
}

void ParseKda(const Fields& linear, ModelConfig& c) {
  linear.Demand("use_full_rank_gate", true);
  linear.Demand("short_conv_kernel_size", 4);
  c.conv_kernel = 4;
  c.kda_heads = linear.Int("num_heads", 1, kMaxHeads);
  c.kda_head_dim = linear.Int("head_dim", 1, kMaxHeadDim);
  c.gate_lower_bound = linear.Number("gate_lower_bound", -5.0f, 0.0f);
  if (c.gate_lower_bound == 0.0f) {
    linear.Fail(ErrorCode::kCorrupt, "gate_lower_bound",
                "is 0, expected a number from -5 to below 0");
  }
  c.is_mla = ParseLayerKinds(linear, c.num_layers);
}

void ParseMla(const Fields& text, ModelConfig& c) {
  c.mla_heads = text.Int("num_attention_heads", 1, kMaxHeads);
  const int64_t kv_heads = text.Int("num_key_value_heads", 1, kMaxHeads);
  if (kv_heads != c.mla_heads) {
    text.Unsupported("num_key_value_heads", format("num_attention_heads ({})", c.mla_heads),
                     kv_heads);
  }
  c.q_lora_rank = text.Int("q_lora_rank", 1, kMaxWidth);
  c.kv_lora_rank = text.Int("kv_lora_rank", 1, kMaxWidth);
  c.qk_nope_head_dim = text.Int("qk_nope_head_dim", 1, kMaxHeadDim);
  c.qk_rope_head_dim = text.Int("qk_rope_head_dim", 1, kMaxHeadDim);
  c.v_head_dim = text.Int("v_head_dim", 1, kMaxHeadDim);
}

// MXFP4 cuts each row into blocks of 32 columns.
int64_t ParseBlockedWidth(const Fields& text, const char* key) {
  const int64_t width = text.Int(key, kMxfp4Block, kMaxWidth);
  if (width % kMxfp4Block != 0) {
    text.Fail(ErrorCode::kCorrupt, key,
              format("is {}, expected a multiple of {} (MXFP4 blocks)", width, kMxfp4Block));
  }
  return width;
}

void ParseMlp(const Fields& text, ModelConfig& c) {
  c.dense_intermediate_size = text.Int("intermediate_size", 1, kMaxWidth);
  c.first_k_dense_replace = text.Int("first_k_dense_replace", 0, c.num_layers);
  c.moe_layer_freq = text.Int("moe_layer_freq", 1, kMaxLayers);
  c.num_experts = text.Int("num_experts", 1, std::min(kMaxExperts, kMaxAllExperts / c.num_layers));
  c.experts_per_token = text.Int("num_experts_per_token", 1, c.num_experts);
  c.num_shared_experts = text.Int("num_shared_experts", 1, kMaxSharedExperts);
  c.moe_intermediate_size = ParseBlockedWidth(text, "moe_intermediate_size");
  c.latent_size = ParseBlockedWidth(text, "routed_expert_hidden_size");
  c.moe_renormalize = text.Bool("moe_renormalize");
  c.routed_scaling_factor = text.Number("routed_scaling_factor", 1e-6f, 1e6f);
  c.situ_beta = text.NumberOr("activation_situ_beta", 1.0f, 0.0f, 1e6f);
  if (c.situ_beta == 0.0f) c.situ_beta = 1.0f;  // as the official code does
  c.situ_linear_beta = text.NumberOr("activation_situ_linear_beta", 0.0f, 0.0f, 1e6f);
  if (c.situ_linear_beta == 0.0f && text.Find("activation_situ_linear_beta") != nullptr) {
    // The official code would divide by it.
    text.Fail(ErrorCode::kCorrupt, "activation_situ_linear_beta",
              "is 0, expected null or a positive number");
  }
}

// Both levels name the special tokens; the text model's own come first.
int64_t ParseTokenId(const Fields& top, const Fields& text, const char* key, int64_t vocab_size) {
  const Fields& first = text.Find(key) != nullptr ? text : top;
  const int64_t id = first.Int(key, 0, vocab_size - 1);
  if (top.Find(key) != nullptr && top.Int(key, 0, vocab_size - 1) != id) {
    text.Fail(ErrorCode::kCorrupt, key,
              format("is {}, but {} at the top level of the file", id, QuoteJson(*top.Find(key))));
  }
  return id;
}

}  // namespace

ModelConfig ModelConfig::Parse(std::string_view json, const std::string& name) {
  const Json document = ParseJson(json, name);
  if (!document.is_object()) {
    throw Error(ErrorCode::kCorrupt,
                format("{}: expected a JSON object, got {}", name, QuoteJson(document)));
  }
  const Fields top(document, name, "");
  top.Demand("model_type", "kimi_k3");
  top.DemandIfPresent("tie_word_embeddings", false);
  const Fields text = top.Object("text_config");
  RefuseOtherFeatures(text);
  CheckQuantization(text.Object("quantization_config"));

  ModelConfig c;
  c.vocab_size = text.Int("vocab_size", 1, kMaxVocab);
  c.hidden_size = text.Int("hidden_size", 1, kMaxWidth);
  c.num_layers = text.Int("num_hidden_layers", 1, kMaxLayers);
  c.attn_res_block_size = text.Int("attn_res_block_size", 1, kMaxLayers);
  c.rms_norm_eps = text.Number("rms_norm_eps", 1e-12f, 1e-1f);
  c.max_position_embeddings = text.Int("max_position_embeddings", 1, kMaxPositions);
  ParseKda(text.Object("linear_attn_config"), c);
  ParseMla(text, c);
  ParseMlp(text, c);
  c.bos_token_id = ParseTokenId(top, text, "bos_token_id", c.vocab_size);
  c.eos_token_id = ParseTokenId(top, text, "eos_token_id", c.vocab_size);
  return c;
}

int64_t ModelConfig::num_mla_layers() const {
  return std::count(is_mla.begin(), is_mla.end(), true);
}

}  // namespace deltafin
