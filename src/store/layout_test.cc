#include "store/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/file.h"
#include "shared_data.h"

namespace deltafin {
namespace {

ModelConfig NanoConfig() {
  const std::string path = NanoDir() + "/config.json";
  return ModelConfig::Parse(ReadWholeFile(RealFileSystem(), path, 1 << 20), path);
}

uint64_t Bytes(const TensorSpec& spec) {
  return static_cast<uint64_t>(NumElements(spec.shape) * DTypeBytes(spec.dtype));
}

uint64_t Bytes(const LayerLayout& layout) {
  uint64_t total = 0;
  for (const VectorSpec& v : layout.vectors) {
    total += Bytes(v.tensor) + (v.second.name.empty() ? 0 : Bytes(v.second));
  }
  for (const MatrixSpec& m : layout.matrices) total += Bytes(m.tensor);
  return total;
}

// The sizes of the release (spec 2.1, 2.6) follow from the layout.
TEST(LayoutTest, HasTheSizesOfTheRelease) {
  SHARED_OR_SKIP(path, "fixtures/config.json");
  const ModelConfig c = ModelConfig::Parse(ReadWholeFile(RealFileSystem(), path, 1 << 20), path);
  uint64_t expert_bytes = 0;
  for (const TensorSpec& part : LayoutOfExpert(c, 1, 0)) expert_bytes += Bytes(part);
  EXPECT_EQ(expert_bytes, 17547264u);

  const uint64_t a_log_padding = 32 * 4;             // [128] in the file, 96 used
  const uint64_t residual_of_layer0 = 2 * 7168 * 2;  // in the file, unused
  EXPECT_EQ(Bytes(LayoutOfLayer(c, 0)) + a_log_padding + residual_of_layer0, 2341213184u);
  EXPECT_EQ(Bytes(LayoutOfLayer(c, 1)) + a_log_padding + 896 * expert_bytes, 16990092800u);
  EXPECT_EQ(Bytes(LayoutOfLayer(c, 3)) + 896 * expert_bytes, 16566684160u);
  EXPECT_EQ(Bytes(LayoutOfLayer(c, 92)) + 896 * expert_bytes, 16566684160u);
  EXPECT_EQ(Bytes(LayoutOfTop(c)) + Bytes(LayoutOfEmbedding(c)), 4697663488u);
}

TEST(LayoutTest, MatricesAreInOrderOfUse) {
  const ModelConfig c = NanoConfig();
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const LayerLayout layout = LayoutOfLayer(c, layer);
    for (size_t i = 1; i < layout.matrices.size(); ++i) {
      EXPECT_LT(layout.matrices[i - 1].id, layout.matrices[i].id) << layer;
    }
  }
}

TEST(LayoutTest, LayerZeroHasNoAttentionResidual) {
  const ModelConfig c = NanoConfig();
  auto has_query = [&](int64_t layer) {
    for (const VectorSpec& v : LayoutOfLayer(c, layer).vectors) {
      if (v.id == SpineVector::kAttnResQuery) return true;
    }
    return false;
  };
  EXPECT_FALSE(has_query(0));
  EXPECT_TRUE(has_query(1));
  EXPECT_TRUE(IsUnusedTensor("language_model.model.layers.0.self_attention_res_norm.weight"));
  EXPECT_TRUE(IsUnusedTensor("language_model.model.layers.0.self_attention_res_proj.weight"));
  EXPECT_FALSE(IsUnusedTensor("language_model.model.layers.1.self_attention_res_norm.weight"));
  EXPECT_FALSE(IsUnusedTensor("language_model.model.layers.0.self_attention_res_norm.weight2"));
}

TEST(LayoutTest, ALogMayBePadded) {
  for (const VectorSpec& v : LayoutOfLayer(NanoConfig(), 0).vectors) {
    const bool is_a_log = v.id == SpineVector::kALog;
    EXPECT_EQ(v.tensor.may_be_longer, is_a_log) << v.tensor.name;
    EXPECT_TRUE(!is_a_log || v.size == 4);
  }
}

TEST(LayoutTest, ExpertNamesParseBack) {
  const ModelConfig c = NanoConfig();
  const std::vector<TensorSpec> parts = LayoutOfExpert(c, 12, 63);
  ASSERT_EQ(parts.size(), static_cast<size_t>(kExpertParts));
  EXPECT_EQ(parts[0].name,
            "language_model.model.layers.12.block_sparse_moe.experts.63.w1.weight_packed");
  for (int part = 0; part < kExpertParts; ++part) {
    const auto parsed = ParseExpertTensorName(parts[static_cast<size_t>(part)].name);
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->layer, 12);
    EXPECT_EQ(parsed->expert, 63);
    EXPECT_EQ(parsed->part, part);
  }
}

TEST(LayoutTest, OtherNamesAreNoExperts) {
  const std::string layers = "language_model.model.layers.";
  for (const std::string& name :
       {std::string(), layers, layers + "1", layers + "1.block_sparse_moe.experts.",
        layers + "1.block_sparse_moe.experts.0", layers + "1.block_sparse_moe.experts.0.w1",
        layers + "1.block_sparse_moe.experts.0.w4.weight_packed",
        layers + "1.block_sparse_moe.experts.0.w1.weight_packed2",
        layers + "01.block_sparse_moe.experts.0.w1.weight_packed",
        layers + "1.block_sparse_moe.experts.00.w1.weight_packed",
        layers + "-1.block_sparse_moe.experts.0.w1.weight_packed",
        layers + "1.block_sparse_moe.experts.+1.w1.weight_packed",
        layers + "1.block_sparse_moe.experts.99999999999999999999.w1.weight_packed",
        layers + "1.block_sparse_moe.gate.weight"}) {
    EXPECT_FALSE(ParseExpertTensorName(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace deltafin
