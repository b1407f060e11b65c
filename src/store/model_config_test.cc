#include "store/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "deltafin/error.h"
#include "deltafin/json.h"
#include "io/file.h"
#include "shared_data.h"

namespace deltafin {
namespace {

using testing::HasSubstr;

std::string ReadText(const std::string& path) {
  return ReadWholeFile(RealFileSystem(), path, 1 << 20);
}

TEST(ModelConfigTest, ReadsTheOfficialFile) {
  SHARED_OR_SKIP(path, "fixtures/config.json");
  const ModelConfig c = ModelConfig::Parse(ReadText(path), path);
  EXPECT_EQ(c.vocab_size, 163840);
  EXPECT_EQ(c.hidden_size, 7168);
  EXPECT_EQ(c.num_layers, 93);
  EXPECT_EQ(c.attn_res_block_size, 12);
  EXPECT_EQ(c.num_snapshots(), 8);
  EXPECT_EQ(c.rms_norm_eps, 1e-5f);
  EXPECT_EQ(c.kda_heads, 96);
  EXPECT_EQ(c.kda_head_dim, 128);
  EXPECT_EQ(c.kda_width(), 12288);
  EXPECT_EQ(c.conv_kernel, 4);
  EXPECT_EQ(c.gate_lower_bound, -5.0f);
  EXPECT_EQ(c.num_mla_layers(), 24);
  for (int64_t layer = 0; layer < 93; ++layer) {
    EXPECT_EQ(c.is_mla[static_cast<size_t>(layer)], layer % 4 == 3 || layer == 92) << layer;
    EXPECT_EQ(c.IsMoe(layer), layer > 0) << layer;
  }
  EXPECT_EQ(c.mla_heads, 96);
  EXPECT_EQ(c.q_lora_rank, 1536);
  EXPECT_EQ(c.kv_lora_rank, 512);
  EXPECT_EQ(c.qk_nope_head_dim, 128);
  EXPECT_EQ(c.qk_rope_head_dim, 64);
  EXPECT_EQ(c.v_head_dim, 128);
  EXPECT_EQ(c.dense_intermediate_size, 33792);
  EXPECT_EQ(c.num_experts, 896);
  EXPECT_EQ(c.experts_per_token, 16);
  EXPECT_EQ(c.shared_width(), 6144);
  EXPECT_EQ(c.moe_intermediate_size, 3072);
  EXPECT_EQ(c.latent_size, 3584);
  EXPECT_TRUE(c.moe_renormalize);
  EXPECT_EQ(c.routed_scaling_factor, 1.0f);
  EXPECT_EQ(c.situ_beta, 4.0f);
  EXPECT_EQ(c.situ_linear_beta, 25.0f);
  EXPECT_EQ(c.bos_token_id, 163584);
  EXPECT_EQ(c.eos_token_id, 163586);
  EXPECT_EQ(c.max_position_embeddings, 1048576);
}

TEST(ModelConfigTest, ReadsTheSmallModels) {
  const std::string official = DataPath("official/model/config.json");
  EXPECT_EQ(ModelConfig::Parse(ReadText(official), official).num_experts, 16);
  const std::string nano = NanoDir() + "/config.json";
  const ModelConfig c = ModelConfig::Parse(ReadText(nano), nano);
  EXPECT_EQ(c.mla_heads, 6);
  EXPECT_EQ(c.kda_heads, 4);
  EXPECT_EQ(c.moe_intermediate_size, 96);
}

TEST(ModelConfigTest, RefusesFlatFiles) {
  SHARED_OR_SKIP(dir, "fixtures/cfg");
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string path = entry.path().string();
    ++count;
    try {
      ModelConfig::Parse(ReadText(path), path);
      ADD_FAILURE() << path << " was accepted";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(entry.path().filename().string() + ": model_type"));
    }
  }
  EXPECT_EQ(count, 3);
}

// A small valid file, changed by each test.
class ModelConfigEditTest : public testing::Test {
 protected:
  Json Valid() { return ParseJson(ReadText(DataPath("official/model/config.json")), "valid"); }

  // Parses the file after `edit` and expects the error.
  void ExpectRefused(const std::function<void(Json& file, Json& text)>& edit, ErrorCode code,
                     const std::string& message) {
    Json file = Valid();
    edit(file, file["text_config"]);
    try {
      ModelConfig::Parse(file.dump(), "config.json");
      ADD_FAILURE() << "accepted, expected: " << message;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_THAT(e.what(), HasSubstr("config.json: " + message));
    }
  }
  ModelConfig Accept(const std::function<void(Json& file, Json& text)>& edit) {
    Json file = Valid();
    edit(file, file["text_config"]);
    return ModelConfig::Parse(file.dump(), "config.json");
  }
};

TEST_F(ModelConfigEditTest, EveryUsedFieldIsRequired) {
  const std::vector<std::string> paths = {
      "model_type",
      "text_config",
      "text_config.model_type",
      "text_config.vocab_size",
      "text_config.hidden_size",
      "text_config.num_hidden_layers",
      "text_config.attn_res_block_size",
      "text_config.rms_norm_eps",
      "text_config.linear_attn_config",
      "text_config.linear_attn_config.num_heads",
      "text_config.linear_attn_config.head_dim",
      "text_config.linear_attn_config.short_conv_kernel_size",
      "text_config.linear_attn_config.gate_lower_bound",
      "text_config.linear_attn_config.use_full_rank_gate",
      "text_config.linear_attn_config.kda_layers",
      "text_config.linear_attn_config.full_attn_layers",
      "text_config.num_attention_heads",
      "text_config.num_key_value_heads",
      "text_config.q_lora_rank",
      "text_config.kv_lora_rank",
      "text_config.qk_nope_head_dim",
      "text_config.qk_rope_head_dim",
      "text_config.v_head_dim",
      "text_config.intermediate_size",
      "text_config.first_k_dense_replace",
      "text_config.moe_layer_freq",
      "text_config.num_experts",
      "text_config.num_experts_per_token",
      "text_config.num_shared_experts",
      "text_config.moe_intermediate_size",
      "text_config.routed_expert_hidden_size",
      "text_config.moe_renormalize",
      "text_config.routed_scaling_factor",
      "text_config.activation_situ_beta",
      "text_config.activation_situ_linear_beta",
      "text_config.max_position_embeddings",
      "text_config.hidden_act",
      "text_config.mla_use_nope",
      "text_config.mla_use_output_gate",
      "text_config.latent_moe_use_norm",
      "text_config.moe_router_activation_func",
      "text_config.quantization_config",
      "text_config.quantization_config.quant_method",
      "text_config.quantization_config.format",
      "text_config.quantization_config.config_groups",
      "text_config.quantization_config.config_groups.group_0.targets",
      "text_config.quantization_config.config_groups.group_0.weights",
      "text_config.quantization_config.config_groups.group_0.weights.num_bits",
      "text_config.quantization_config.config_groups.group_0.weights.group_size"};
  for (const std::string& path : paths) {
    ExpectRefused(
        [&](Json& file, Json&) {
          Json* object = &file;
          std::string rest = path;
          for (size_t dot; (dot = rest.find('.')) != std::string::npos;) {
            object = &(*object)[rest.substr(0, dot)];
            rest = rest.substr(dot + 1);
          }
          ASSERT_EQ(object->erase(rest), 1u) << path;
        },
        ErrorCode::kCorrupt, path + " is missing");
  }
}

TEST_F(ModelConfigEditTest, RefusesFeaturesByName) {
  auto refuse = [&](const std::string& key, const Json& value) {
    ExpectRefused([&](Json&, Json& text) { text[key] = value; }, ErrorCode::kUnsupported,
                  "text_config." + key + " is ");
  };
  refuse("model_type", "kimi_k2");
  refuse("hidden_act", "silu");
  refuse("mla_use_nope", false);
  refuse("mla_use_output_gate", false);
  refuse("latent_moe_use_norm", false);
  refuse("moe_router_activation_func", "softmax");
  refuse("rope_theta", 10000.0);
  refuse("rope_scaling", Json{{"type", "yarn"}});
  refuse("rope_parameters", Json{{"rope_theta", 1e4}});
  refuse("tie_word_embeddings", true);
  refuse("num_nextn_predict_layers", 1);
  refuse("num_key_value_heads", 2);
  refuse("num_expert_group", 4);
  ExpectRefused([](Json& file, Json&) { file["model_type"] = "kimi_vl"; }, ErrorCode::kUnsupported,
                "model_type is \"kimi_vl\", expected \"kimi_k3\"");
  ExpectRefused([](Json& file, Json&) { file["tie_word_embeddings"] = true; },
                ErrorCode::kUnsupported, "tie_word_embeddings is true");
  ExpectRefused([](Json&, Json& text) { text["linear_attn_config"]["use_full_rank_gate"] = false; },
                ErrorCode::kUnsupported,
                "text_config.linear_attn_config.use_full_rank_gate is false");
  ExpectRefused([](Json&, Json& text) { text["linear_attn_config"]["short_conv_kernel_size"] = 3; },
                ErrorCode::kUnsupported,
                "text_config.linear_attn_config.short_conv_kernel_size is 3, expected 4");
}

TEST_F(ModelConfigEditTest, RefusesOtherQuantization) {
  const std::string root = "text_config.quantization_config.";
  auto refuse = [&](const std::string& path, const std::function<void(Json & quant)>& edit) {
    ExpectRefused([&](Json&, Json& text) { edit(text["quantization_config"]); },
                  ErrorCode::kUnsupported, root + path + " is ");
  };
  refuse("quant_method", [](Json& q) { q["quant_method"] = "gptq"; });
  refuse("format", [](Json& q) { q["format"] = "pack-quantized"; });
  refuse("quantization_status", [](Json& q) { q["quantization_status"] = "frozen"; });
  refuse("kv_cache_scheme", [](Json& q) { q["kv_cache_scheme"] = {{"num_bits", 8}}; });
  refuse("config_groups",
         [](Json& q) { q["config_groups"]["group_1"] = q["config_groups"]["group_0"]; });
  refuse("config_groups", [](Json& q) { q["config_groups"] = Json::object(); });
  const std::string group = "config_groups.group_0.";
  refuse(group + "targets", [](Json& q) {
    q["config_groups"]["group_0"]["targets"] = {"Linear", "Embedding"};
  });
  refuse(group + "input_activations", [](Json& q) {
    q["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}};
  });
  auto weights = [&](const std::string& key, const Json& value) {
    refuse(group + "weights." + key,
           [&](Json& q) { q["config_groups"]["group_0"]["weights"][key] = value; });
  };
  weights("num_bits", 8);
  weights("type", "int");
  weights("strategy", "channel");
  weights("group_size", 16);
  weights("symmetric", false);
  weights("dynamic", true);
  weights("scale_dtype", "torch.float8_e4m3fn");
  weights("actorder", "group");
}

TEST_F(ModelConfigEditTest, RefusesImpossibleValues) {
  auto refuse = [&](const std::string& key, const Json& value, const std::string& message) {
    ExpectRefused([&](Json&, Json& text) { text[key] = value; }, ErrorCode::kCorrupt,
                  "text_config." + key + " is " + message);
  };
  refuse("hidden_size", 0, "0, expected an integer from 1 to 1048576");
  refuse("hidden_size", -128, "-128, expected");
  refuse("hidden_size", 128.0, "128.0, expected");
  refuse("hidden_size", "128", "\"128\", expected");
  refuse("hidden_size", nullptr, "null, expected");
  refuse("hidden_size", uint64_t{1} << 63, "9223372036854775808, expected");
  refuse("vocab_size", 1 << 25, "33554432, expected");
  refuse("num_hidden_layers", 1 << 20, "1048576, expected");
  refuse("num_experts", 1 << 30, "1073741824, expected");
  refuse("num_experts_per_token", 17, "17, expected an integer from 1 to 16");
  refuse("num_experts_per_token", 0, "0, expected");
  refuse("first_k_dense_replace", 14, "14, expected an integer from 0 to 13");
  refuse("moe_layer_freq", 0, "0, expected");
  refuse("moe_intermediate_size", 48, "48, expected a multiple of 32");
  refuse("routed_expert_hidden_size", 72, "72, expected a multiple of 32");
  refuse("rms_norm_eps", 0.0, "0.0, expected");
  refuse("rms_norm_eps", "1e-5", "\"1e-5\", expected");
  refuse("moe_renormalize", 1, "1, expected true or false");
  refuse("activation_situ_beta", -1.0, "-1.0, expected");
  refuse("activation_situ_linear_beta", 0.0, "0, expected null or a positive number");
  refuse("routed_scaling_factor", 0, "0, expected");
  refuse("eos_token_id", 832, "832, expected an integer from 0 to 831");
  refuse("eos_token_id", 577, "577, but 578 at the top level");
  ExpectRefused([](Json&, Json& text) { text["linear_attn_config"] = Json::array(); },
                ErrorCode::kCorrupt, "text_config.linear_attn_config is [], expected an object");
  for (double bound : {0.0, 0.5, -5.01}) {
    ExpectRefused(
        [&](Json&, Json& text) { text["linear_attn_config"]["gate_lower_bound"] = bound; },
        ErrorCode::kCorrupt, "text_config.linear_attn_config.gate_lower_bound is ");
  }
}

TEST_F(ModelConfigEditTest, LayerListsMustBeAPartition) {
  auto refuse = [&](const std::string& key, const Json& layers, const std::string& message) {
    ExpectRefused([&](Json&, Json& text) { text["linear_attn_config"][key] = layers; },
                  ErrorCode::kCorrupt, "text_config.linear_attn_config." + message);
  };
  refuse("full_attn_layers", {4, 8, 12, 13, 1}, "full_attn_layers lists layer 1 a second time");
  refuse("full_attn_layers", {4, 8, 12, 12}, "full_attn_layers lists layer 12 a second time");
  refuse("full_attn_layers", {4, 8, 13}, "kda_layers and full_attn_layers both lack layer 12");
  refuse("full_attn_layers", {0, 4, 8, 12}, "full_attn_layers is 0, expected a list of integers");
  refuse("full_attn_layers", {4, 8, 12, 14}, "full_attn_layers is 14, expected");
  refuse("kda_layers", 3, "kda_layers is 3, expected a list");
}

TEST_F(ModelConfigEditTest, AcceptsWhatChangesNothing) {
  const ModelConfig c = Accept([](Json&, Json& text) {
    text["some_new_field"] = {1, 2, 3};
    text["rope_theta"] = nullptr;
    text["rope_scaling"] = nullptr;
    text["num_expert_group"] = 4;  // no restriction while topk_group is as many
    text["topk_group"] = 4;
    text["activation_situ_beta"] = nullptr;
    text["activation_situ_linear_beta"] = nullptr;
    text["moe_renormalize"] = false;
    text.erase("num_nextn_predict_layers");
    text.erase("eos_token_id");
  });
  EXPECT_EQ(c.situ_beta, 1.0f);
  EXPECT_EQ(c.situ_linear_beta, 0.0f);
  EXPECT_FALSE(c.moe_renormalize);
  EXPECT_EQ(c.eos_token_id, 578);  // from the top level
  EXPECT_EQ(Accept([](Json&, Json& text) { text["activation_situ_beta"] = 0; }).situ_beta, 1.0f);
}

TEST_F(ModelConfigEditTest, MoeLayersFollowTheOfficialRule) {
  const ModelConfig c = Accept([](Json&, Json& text) {
    text["first_k_dense_replace"] = 3;
    text["moe_layer_freq"] = 2;
  });
  std::vector<int64_t> moe;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    if (c.IsMoe(layer)) moe.push_back(layer);
  }
  EXPECT_THAT(moe, testing::ElementsAre(4, 6, 8, 10, 12));
}

TEST(ModelConfigTest, RefusesWhatIsNotAnObject) {
  for (const char* text : {"", "[]", "3", "{", "null", "{}"}) {
    EXPECT_THROW(ModelConfig::Parse(text, "config.json"), Error) << text;
  }
}

}  // namespace
}  // namespace deltafin
