// The small text files of a checkpoint: configuration and tokenizer.
#include <nlohmann/json.hpp>

#include "reference/checkpoint_writer.h"

namespace deltafin::reference {
namespace {

using Json = nlohmann::json;

std::string Base64(const std::string& bytes) {
  static const char kAlphabet[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0U);
    }
    const size_t chars = std::min<size_t>(3, bytes.size() - i) + 1;
    for (size_t j = 0; j < 4; ++j) {
      text += j < chars ? kAlphabet[group >> (18 - 6 * j) & 63U] : '=';
    }
  }
  return text;
}

// Section 6.1: the named specials, by their distance from the first one.
struct NamedSpecial {
  int64_t offset;
  const char* text;
  bool special;
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

Json OptionalNumber(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json LinearAttention(const CheckpointOptions& o) {
  std::vector<int64_t> full, kda;
  for (int64_t layer = 0; layer < o.num_layers; ++layer) {
    (o.IsMla(layer) ? full : kda).push_back(layer + 1);  // 1-based in the file
  }
  return {{"num_heads", o.kda_heads},
          {"head_dim", o.kda_head_dim},
          {"short_conv_kernel_size", 4},
          {"use_full_rank_gate", true},
          {"gate_lower_bound", o.gate_lower_bound},
          {"full_attn_layers", full},
          {"kda_layers", kda}};
}

Json Quantization() {
  const Json weights = {{"num_bits", 4},
                        {"type", "float"},
                        {"strategy", "group"},
                        {"group_size", 32},
                        {"symmetric", true},
                        {"dynamic", false},
                        {"scale_dtype", "torch.uint8"},
                        {"observer", "minmax"}};
  const Json group = {{"format", "mxfp4-pack-quantized"},
                      {"input_activations", nullptr},
                      {"output_activations", nullptr},
                      {"targets", {"Linear"}},
                      {"weights", weights}};
  return {{"config_groups", {{"group_0", group}}},
          {"format", "mxfp4-pack-quantized"},
          {"global_compression_ratio", nullptr},
          {"ignore",
           {"re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*", "re:.*vision_tower.*", "re:.*mm_projector.*"}},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

Json TextConfig(const CheckpointOptions& o) {
  return {{"model_type", "kimi_linear"},
          {"architectures", {"KimiLinearForCausalLM"}},
          {"dtype", "bfloat16"},
          {"vocab_size", o.vocab_size()},
          {"hidden_size", o.hidden_size},
          {"num_hidden_layers", o.num_layers},
          {"num_attention_heads", o.mla_heads},
          {"num_key_value_heads", o.mla_heads},
          {"hidden_act", "situ"},
          {"activation_situ_beta", OptionalNumber(o.situ_beta)},
          {"activation_situ_linear_beta", OptionalNumber(o.situ_linear_beta)},
          {"initializer_range", 0.02},
          {"rms_norm_eps", o.rms_norm_eps},
          {"intermediate_size", o.dense_intermediate_size},
          {"first_k_dense_replace", o.first_k_dense_replace},
          {"moe_layer_freq", o.moe_layer_freq},
          {"num_experts", o.num_experts},
          {"num_experts_per_token", o.experts_per_token},
          {"num_shared_experts", o.num_shared_experts},
          {"moe_intermediate_size", o.moe_intermediate_size},
          {"routed_expert_hidden_size", o.latent_size},
          {"latent_moe_use_norm", true},
          {"moe_router_activation_func", "sigmoid"},
          {"moe_renormalize", o.moe_renormalize},
          {"routed_scaling_factor", o.routed_scaling_factor},
          {"use_grouped_topk", true},
          {"num_expert_group", 1},
          {"topk_group", 1},
          {"topk_method", "noaux_tc"},
          {"q_lora_rank", o.q_lora_rank},
          {"kv_lora_rank", o.kv_lora_rank},
          {"qk_nope_head_dim", o.qk_nope_head_dim},
          {"qk_rope_head_dim", o.qk_rope_head_dim},
          {"v_head_dim", o.v_head_dim},
          {"mla_use_nope", true},
          {"mla_use_output_gate", true},
          {"attn_res_block_size", o.attn_res_block_size},
          {"num_nextn_predict_layers", 0},
          {"max_position_embeddings", 1048576},
          {"tie_word_embeddings", false},
          {"use_cache", true},
          {"bos_token_id", o.num_ranks()},
          {"eos_token_id", o.num_ranks() + 2},
          {"pad_token_id", o.num_ranks() + 255},
          {"linear_attn_config", LinearAttention(o)},
          {"quantization_config", Quantization()}};
}

}  // namespace

std::string ConfigJson(const CheckpointOptions& o) {
  const Json config = {
      {"architectures", {"KimiK3ForConditionalGeneration"}},
      {"model_type", "kimi_k3"},
      {"dtype", "bfloat16"},
      {"bos_token_id", o.num_ranks()},
      {"eos_token_id", o.num_ranks() + 2},
      {"pad_token_id", o.num_ranks() + 255},
      {"media_placeholder_token_id", o.num_ranks() + 21},
      {"image_placeholder", "<|kimi_image_placeholder|>"},
      {"ignore_index", -100},
      {"tie_word_embeddings", false},
      {"text_config", TextConfig(o)},
  };
  return config.dump(2);
}

std::string GenerationConfigJson(const CheckpointOptions& o) {
  const Json config = {{"max_length", 1048576}, {"eos_token_id", o.num_ranks() + 2}};
  return config.dump(2) + "\n";
}

std::string TiktokenModel(const CheckpointOptions& o) {
  std::string text;
  const auto add = [&](const std::string& bytes, int64_t rank) {
    text += Base64(bytes) + " " + std::to_string(rank) + "\n";
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)), byte);
  for (int64_t i = 0; i < o.num_merges; ++i) {
    add({static_cast<char>('a' + i % 26), static_cast<char>('a' + i / 26)}, 256 + i);
  }
  return text;
}

std::string TokenizerConfigJson(const CheckpointOptions& o) {
  Json added = Json::object();
  for (const NamedSpecial& s : kSpecials) {
    added[std::to_string(o.num_ranks() + s.offset)] = {
        {"content", s.text}, {"lstrip", false},      {"normalized", false},
        {"rstrip", false},   {"single_word", false}, {"special", s.special}};
  }
  const Json config = {{"added_tokens_decoder", added},
                       {"bos_token", "[BOS]"},
                       {"clean_up_tokenization_spaces", false},
                       {"eos_token", "[EOS]"},
                       {"pad_token", "[PAD]"},
                       {"tokenizer_class", "TikTokenTokenizer"},
                       {"unk_token", "[UNK]"}};
  return config.dump(2);
}

}  // namespace deltafin::reference
