#include "store/synth_config.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "deltafin/json.h"

namespace deltafin {
namespace {

constexpr int64_t kNumSpecials = 256;

// Places after the last rank.
struct NamedSpecial {
  int64_t place;
  const char* spelling;
  bool is_control;  // "special" in the file; the release has three that are not
};
constexpr NamedSpecial kSpecials[] = {
    {0, "[BOS]", true},
    {1, "[EOS]", true},
    {2, "<|end_of_msg|>", true},
    {3, "<|open|>", false},
    {4, "<|close|>", false},
    {5, "<|sep|>", false},
    {6, "[start_header_id]", true},
    {7, "[end_header_id]", true},
    {9, "[EOT]", true},
    {18, "<|media_begin|>", true},
    {19, "<|media_content|>", true},
    {20, "<|media_end|>", true},
    {21, "<|media_pad|>", true},
    {65, "<osagent_mode>", true},
    {254, "[UNK]", true},
    {255, "[PAD]", true},
};
constexpr int64_t kBos = 0;
constexpr int64_t kEndOfMessage = 2;
constexpr int64_t kMedia = 21;
constexpr int64_t kPad = 255;

Json K3Text() {
  return {{"hidden_size", 7168},
          {"intermediate_size", 33792},
          {"num_attention_heads", 96},
          {"num_key_value_heads", 96},
          {"q_lora_rank", 1536},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"attn_res_block_size", 12},
          {"num_experts_per_token", 16},
          {"moe_intermediate_size", 3072},
          {"routed_expert_hidden_size", 3584},
          {"linear_attn_config", {{"num_heads", 96}, {"head_dim", 128}}}};
}

Json NanoText() {
  return {{"hidden_size", 256},
          {"intermediate_size", 512},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 6},
          {"q_lora_rank", 96},
          {"kv_lora_rank", 64},
          {"qk_nope_head_dim", 32},
          {"qk_rope_head_dim", 16},
          {"v_head_dim", 32},
          {"attn_res_block_size", 4},
          {"num_experts_per_token", 6},
          {"moe_intermediate_size", 96},
          {"routed_expert_hidden_size", 128},
          {"linear_attn_config", {{"num_heads", 4}, {"head_dim", 64}}}};
}

// What the two have in common and the forward pass depends on.
void AddCommon(Json& text) {
  text.update({{"model_type", "kimi_linear"},
               {"hidden_act", "situ"},
               {"activation_situ_beta", 4.0},
               {"activation_situ_linear_beta", 25.0},
               {"rms_norm_eps", 1e-05},
               {"first_k_dense_replace", 1},
               {"moe_layer_freq", 1},
               {"num_shared_experts", 2},
               {"latent_moe_use_norm", true},
               {"moe_router_activation_func", "sigmoid"},
               {"moe_renormalize", true},
               {"routed_scaling_factor", 1.0},
               {"use_grouped_topk", true},
               {"num_expert_group", 1},
               {"topk_group", 1},
               {"topk_method", "noaux_tc"},
               {"mla_use_nope", true},
               {"mla_use_output_gate", true},
               {"num_nextn_predict_layers", 0},
               {"max_position_embeddings", 1048576},
               {"tie_word_embeddings", false}});
  const Json weights = {{"num_bits", 4},       {"type", "float"},
                        {"strategy", "group"}, {"group_size", 32},
                        {"symmetric", true},   {"dynamic", false},
                        {"actorder", nullptr}, {"scale_dtype", "torch.uint8"}};
  const Json group = {{"targets", {"Linear"}},
                      {"weights", weights},
                      {"input_activations", nullptr},
                      {"output_activations", nullptr}};
  text["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"format", "mxfp4-pack-quantized"},
                                 {"quantization_status", "compressed"},
                                 {"kv_cache_scheme", nullptr},
                                 {"config_groups", {{"group_0", group}}}};
}

void AddAttentionLayers(Json& linear, int64_t num_layers) {
  Json kda = Json::array();
  Json mla = Json::array();
  for (int64_t layer = 1; layer <= num_layers; ++layer) {
    (layer % 4 == 0 || layer == num_layers ? mla : kda).push_back(layer);
  }
  linear["full_attn_layers"] = mla;
  linear["kda_layers"] = kda;
  linear["gate_lower_bound"] = -5.0;
  linear["short_conv_kernel_size"] = 4;
  linear["use_full_rank_gate"] = true;
}

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += i + j <= bytes.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

// The strings of `length` characters, in order: a small letter or a space, then small letters.
void AddWords(size_t length, size_t max_count, std::vector<std::string>& words) {
  std::string word(length, 'a');
  for (const char first : std::string_view(" abcdefghijklmnopqrstuvwxyz")) {
    word.assign(length, 'a');
    word[0] = first;
    for (;;) {
      if (words.size() == max_count) return;
      words.push_back(word);
      size_t at = length - 1;
      while (at > 0 && word[at] == 'z') word[at--] = 'a';
      if (at == 0) break;
      ++word[at];
    }
  }
}

}  // namespace

std::string SynthConfigJson(const SynthOptions& options) {
  Json text = options.like == SynthLike::kK3 ? K3Text() : NanoText();
  AddCommon(text);
  text["num_hidden_layers"] = options.layers;
  text["num_experts"] = options.experts;
  text["num_experts_per_token"] =
      std::min(options.experts, text["num_experts_per_token"].get<int64_t>());
  AddAttentionLayers(text["linear_attn_config"], options.layers);
  const int64_t ranks = options.vocab - kNumSpecials;
  const Json ids = {{"vocab_size", options.vocab},
                    {"bos_token_id", ranks + kBos},
                    {"eos_token_id", ranks + kEndOfMessage},
                    {"pad_token_id", ranks + kPad}};
  text.update(ids);
  Json config = {{"architectures", {"KimiK3ForConditionalGeneration"}},
                 {"model_type", "kimi_k3"},
                 {"dtype", "bfloat16"},
                 {"tie_word_embeddings", false},
                 {"media_placeholder_token_id", ranks + kMedia},
                 {"bos_token_id", ranks + kBos},
                 {"eos_token_id", ranks + kEndOfMessage},
                 {"pad_token_id", ranks + kPad}};
  config["text_config"] = text;
  return config.dump(2) + "\n";
}

std::string SynthGenerationConfigJson(const ModelConfig& config) {
  return Json{{"max_length", config.max_position_embeddings}, {"eos_token_id", config.eos_token_id}}
             .dump() +
         "\n";
}

std::string SynthRanks(const ModelConfig& config) {
  const auto num_ranks = static_cast<size_t>(config.vocab_size - kNumSpecials);
  std::vector<std::string> words;
  for (int byte = 0; byte < 256; ++byte) words.emplace_back(1, static_cast<char>(byte));
  for (size_t length = 2; words.size() < num_ranks; ++length) AddWords(length, num_ranks, words);
  std::string file;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    file += format("{} {}\n", Base64(words[rank]), rank);
  }
  return file;
}

std::string SynthTokenizerConfigJson(const ModelConfig& config) {
  const int64_t ranks = config.vocab_size - kNumSpecials;
  Json added = Json::object();
  for (const NamedSpecial& special : kSpecials) {
    added[std::to_string(ranks + special.place)] = {
        {"content", special.spelling}, {"lstrip", false},
        {"normalized", false},         {"rstrip", false},
        {"single_word", false},        {"special", special.is_control}};
  }
  return Json{{"added_tokens_decoder", added}, {"bos_token", "[BOS]"},
              {"eos_token", "[EOS]"},          {"pad_token", "[PAD]"},
              {"unk_token", "[UNK]"},          {"tokenizer_class", "TikTokenTokenizer"}}
             .dump(2) +
         "\n";
}

}  // namespace deltafin
