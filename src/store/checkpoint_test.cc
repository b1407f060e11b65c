#include "store/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include "deltafin/error.h"
#include "shared_data.h"
#include "store/testing/checkpoint_editor.h"
#include "store/testing/skeleton.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kLayer1 = "language_model.model.layers.1.";
const std::string kExpert5 = kLayer1 + "block_sparse_moe.experts.5.";

std::string ReadExtent(const Checkpoint& checkpoint, const Extent& extent) {
  std::string bytes(extent.bytes, '\0');
  checkpoint.file(extent.shard)
      .ReadAt(extent.offset, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
  return bytes;
}

// Compares where the checkpoint says that tensors lie with an independent reading of the files.
void ExpectSameBytes(const std::string& dir) {
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), dir);
  const ModelConfig& config = checkpoint->config();
  std::map<std::string, std::string> truth;
  uint64_t total_bytes = 0;
  for (size_t shard = 0; shard < checkpoint->num_shards(); ++shard) {
    const std::string& path = checkpoint->file(static_cast<uint32_t>(shard)).path();
    total_bytes += std::filesystem::file_size(path);
    EditableShard file(path);
    for (EditableTensor& t : file.tensors()) truth[t.name] = std::move(t.bytes);
  }
  EXPECT_EQ(checkpoint->total_bytes(), total_bytes);

  auto expect = [&](const TensorSpec& spec) {
    ASSERT_TRUE(truth.contains(spec.name)) << spec.name;
    EXPECT_EQ(ReadExtent(*checkpoint, checkpoint->Find(spec)), truth[spec.name]) << spec.name;
  };
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const LayerLayout layout = LayoutOfLayer(config, layer);
    for (const VectorSpec& v : layout.vectors) expect(v.tensor);
    for (const MatrixSpec& m : layout.matrices) expect(m.tensor);
    if (!config.IsMoe(layer)) continue;
    for (int64_t expert = 0; expert < config.num_experts; ++expert) {
      std::string span;
      for (const TensorSpec& part : LayoutOfExpert(config, layer, expert)) span += truth[part.name];
      const Extent extent = checkpoint->ExpertSpan(layer, expert);
      ASSERT_EQ(extent.bytes, checkpoint->expert_bytes());
      ASSERT_EQ(ReadExtent(*checkpoint, extent), span) << layer << " " << expert;
    }
  }
  expect(LayoutOfEmbedding(config));
}

TEST(CheckpointTest, FindsEveryByteOfTheOfficialSmallModel) {
  ExpectSameBytes(DataPath("official/model"));
}

TEST(CheckpointTest, FindsEveryByteOfNano) { ExpectSameBytes(NanoDir()); }

TEST(CheckpointTest, FindsEveryByteOfTheSharedNano) {
  SHARED_OR_SKIP(dir, "nano/model");
  ExpectSameBytes(dir);
}

TEST(CheckpointTest, ViewsTheSixPartsOfAnExpert) {
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), NanoDir());
  const std::string bytes = ReadExtent(*checkpoint, checkpoint->ExpertSpan(3, 17));
  const std::byte* span = std::as_bytes(std::span(bytes.data(), bytes.size())).data();
  const ExpertWeights view = checkpoint->ViewExpert(span);
  EditableShard shard(NanoDir() + "/model-00004-of-000014.safetensors");
  const std::string prefix = "language_model.model.layers.3.block_sparse_moe.experts.17.";
  auto expect = [&](const Matrix& matrix, const std::string& name, int64_t rows, int64_t cols) {
    EXPECT_EQ(matrix.format, WeightFormat::kMxfp4);
    EXPECT_EQ(matrix.rows, rows);
    EXPECT_EQ(matrix.cols, cols);
    const std::string& packed = shard.Get(prefix + name + ".weight_packed").bytes;
    const std::string& scale = shard.Get(prefix + name + ".weight_scale").bytes;
    ASSERT_EQ(packed.size(), static_cast<size_t>(rows * cols / 2));
    EXPECT_EQ(std::memcmp(matrix.data, packed.data(), packed.size()), 0) << name;
    EXPECT_EQ(std::memcmp(matrix.scales, scale.data(), scale.size()), 0) << name;
  };
  expect(view.w1, "w1", 96, 128);
  expect(view.w2, "w2", 128, 96);
  expect(view.w3, "w3", 96, 128);
}

// Copies of the official small model with one thing wrong each.
class DamagedCheckpointTest : public testing::Test {
 protected:
  DamagedCheckpointTest() {
    for (const auto& file : std::filesystem::directory_iterator(DataPath("official/model"))) {
      if (!file.is_regular_file()) continue;  // what earlier runs keep beside the files
      std::filesystem::copy_file(file.path(), dir_ / file.path().filename().string());
    }
    EXPECT_NO_THROW(Checkpoint::Open(RealFileSystem(), dir_.path()));
  }

  std::string ShardPath(int number) {
    return dir_ / ("model-000" + std::string(number < 10 ? "0" : "") + std::to_string(number) +
                   "-of-000016.safetensors");
  }
  void EditShard(int number, const std::function<void(EditableShard&)>& edit) {
    EditableShard shard(ShardPath(number));
    edit(shard);
    shard.Write();
  }
  void EditIndex(const std::function<void(Json& weight_map)>& edit) {
    EditJson(dir_ / "model.safetensors.index.json", [&](Json& file) { edit(file["weight_map"]); });
  }

  template <class Matcher>
  void ExpectRefused(ErrorCode code, const Matcher& message) {
    try {
      Checkpoint::Open(RealFileSystem(), dir_.path());
      ADD_FAILURE() << "was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_THAT(e.what(), message);
    }
  }

  TempDir dir_;
};

TEST_F(DamagedCheckpointTest, NoConfig) {
  std::filesystem::remove(dir_ / "config.json");
  ExpectRefused(ErrorCode::kNotFound, HasSubstr("config.json"));
}

TEST_F(DamagedCheckpointTest, NoIndex) {
  std::filesystem::remove(dir_ / "model.safetensors.index.json");
  ExpectRefused(ErrorCode::kNotFound, HasSubstr("model.safetensors.index.json"));
}

TEST_F(DamagedCheckpointTest, ShardsMissing) {
  std::filesystem::remove(ShardPath(3));
  ExpectRefused(ErrorCode::kNotFound,
                AllOf(HasSubstr("model-00003-of-000016.safetensors is missing:"),
                      HasSubstr("15 of 16 shard files are there")));
  std::filesystem::remove(ShardPath(7));
  std::filesystem::remove(ShardPath(16));
  ExpectRefused(ErrorCode::kNotFound,
                AllOf(HasSubstr("model-00003-of-000016.safetensors is missing and so are 2 others"),
                      HasSubstr("13 of 16 shard files are there")));
}

TEST_F(DamagedCheckpointTest, ShardTruncated) {
  const auto size = std::filesystem::file_size(ShardPath(5));
  for (const uintmax_t left : {size - 1, size / 2, uintmax_t{100}, uintmax_t{4}, uintmax_t{0}}) {
    std::filesystem::resize_file(ShardPath(5), left);
    ExpectRefused(ErrorCode::kCorrupt, HasSubstr("model-00005-of-000016.safetensors"));
  }
}

TEST_F(DamagedCheckpointTest, SpineTensorMissing) {
  const std::string name = kLayer1 + "self_attn.q_proj.weight";
  EditShard(2, [&](EditableShard& shard) { shard.Remove(name); });
  EditIndex([&](Json& map) { map.erase(name); });
  ExpectRefused(ErrorCode::kNotFound,
                AllOf(HasSubstr("model.safetensors.index.json: tensor " + name + " is in no shard"),
                      HasSubstr("expected BF16 [128,128]")));
}

TEST_F(DamagedCheckpointTest, ExpertTensorMissing) {
  const std::string name = kExpert5 + "w3.weight_scale";
  EditShard(2, [&](EditableShard& shard) { shard.Remove(name); });
  EditIndex([&](Json& map) { map.erase(name); });
  ExpectRefused(ErrorCode::kNotFound,
                AllOf(HasSubstr("tensor " + name + " is in no shard"), HasSubstr("U8 [64,2]")));
}

TEST_F(DamagedCheckpointTest, WrongDtype) {
  const std::string name = kLayer1 + "self_attn.dt_bias";
  EditShard(2, [&](EditableShard& shard) { shard.Get(name).dtype = "I32"; });
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr("model-00002-of-000016.safetensors: tensor " + name),
                      HasSubstr("is I32 [128], expected F32 [128]")));
}

TEST_F(DamagedCheckpointTest, WrongShape) {
  const std::string name = "language_model.model.layers.0.mlp.down_proj.weight";
  EditShard(1, [&](EditableShard& shard) { shard.Get(name).shape = {256, 128}; });
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr(name), HasSubstr("is BF16 [256,128], expected BF16 [128,256]")));
}

TEST_F(DamagedCheckpointTest, WrongRank) {
  const std::string name = "language_model.model.output_attn_res_proj.weight";
  EditShard(14, [&](EditableShard& shard) { shard.Get(name).shape = {128}; });
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr(name), HasSubstr("is BF16 [128], expected BF16 [1,128]")));
}

TEST_F(DamagedCheckpointTest, WrongExpertShape) {
  const std::string name = kExpert5 + "w2.weight_scale";
  EditShard(2, [&](EditableShard& shard) { shard.Get(name).shape = {2, 64}; });
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr(name), HasSubstr("is U8 [2,64], expected U8 [64,2]")));
}

TEST_F(DamagedCheckpointTest, ALogMayBePaddedButNotShort) {
  const std::string name = kLayer1 + "self_attn.A_log";
  auto resize = [&](int64_t values) {
    EditShard(2, [&](EditableShard& shard) {
      shard.Get(name).shape = {values};
      shard.Get(name).bytes.resize(static_cast<size_t>(values) * 4);
    });
  };
  for (int64_t values : {33, 4}) {
    resize(values);
    EXPECT_NO_THROW(Checkpoint::Open(RealFileSystem(), dir_.path())) << values;
  }
  resize(3);
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr(name), HasSubstr("is F32 [3], expected F32 [4] or longer")));
}

TEST_F(DamagedCheckpointTest, IndexNamesAnotherShard) {
  const std::string name = kLayer1 + "self_attn.q_proj.weight";
  EditIndex([&](Json& map) { map[name] = "model-00003-of-000016.safetensors"; });
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr("model-00002-of-000016.safetensors holds tensor " + name),
                      HasSubstr("says it is in model-00003-of-000016.safetensors")));
}

TEST_F(DamagedCheckpointTest, IndexListsATensorThatNoShardHas) {
  // One name that sorts into the middle of a header, one that sorts after all of it.
  for (const std::string& name : {kLayer1 + "aaa", std::string("zzz")}) {
    EditIndex([&](Json& map) { map[name] = "model-00002-of-000016.safetensors"; });
    ExpectRefused(
        ErrorCode::kCorrupt,
        AllOf(HasSubstr("index.json says that tensor " + name + " is in "),
              HasSubstr("model-00002-of-000016.safetensors, whose header does not have it")));
    EditIndex([&](Json& map) { map.erase(name); });
  }
}

TEST_F(DamagedCheckpointTest, ShardHoldsATensorThatTheIndexLacks) {
  const std::string name = kExpert5 + "w1.weight_packed";
  EditIndex([&](Json& map) { map.erase(name); });
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr("holds tensor " + name), HasSubstr("says nothing of it")));
}

TEST_F(DamagedCheckpointTest, TensorInTwoShards) {
  const std::string name = kLayer1 + "self_attn.q_proj.weight";
  const EditableTensor tensor = EditableShard(ShardPath(2)).Get(name);
  EditShard(3, [&](EditableShard& shard) { shard.tensors().push_back(tensor); });
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr("model-00003-of-000016.safetensors holds tensor " + name),
                      HasSubstr("says it is in model-00002-of-000016.safetensors")));
}

// A bias that is there and is not added would give other logits.
TEST_F(DamagedCheckpointTest, TextTensorThatK3DoesNotHave) {
  const std::string name = kLayer1 + "self_attn.q_proj.bias";
  EditShard(2, [&](EditableShard& shard) {
    shard.tensors().push_back({name, "BF16", {128}, std::string(256, '\0')});
  });
  EditIndex([&](Json& map) { map[name] = "model-00002-of-000016.safetensors"; });
  ExpectRefused(ErrorCode::kUnsupported,
                AllOf(HasSubstr("tensor " + name), HasSubstr("got BF16 [128]")));
}

TEST_F(DamagedCheckpointTest, OtherTensorsAreIgnored) {
  EditShard(15, [&](EditableShard& shard) {
    shard.tensors().push_back({"mm_projector.extra", "F64", {1}, std::string(8, '\1')});
  });
  EditIndex([&](Json& map) { map["mm_projector.extra"] = "model-00015-of-000016.safetensors"; });
  EXPECT_NO_THROW(Checkpoint::Open(RealFileSystem(), dir_.path()));
}

TEST_F(DamagedCheckpointTest, UnusedResidualOfLayerZeroIsOptional) {
  const std::string prefix = "language_model.model.layers.0.self_attention_res_";
  for (const std::string suffix : {"norm.weight", "proj.weight"}) {
    EditShard(1, [&](EditableShard& shard) { shard.Remove(prefix + suffix); });
    EditIndex([&](Json& map) { map.erase(prefix + suffix); });
    EXPECT_NO_THROW(Checkpoint::Open(RealFileSystem(), dir_.path()));
  }
}

TEST_F(DamagedCheckpointTest, ExpertPartsInAnotherOrder) {
  EditShard(2, [&](EditableShard& shard) {
    std::swap(shard.Get(kExpert5 + "w2.weight_packed"), shard.Get(kExpert5 + "w3.weight_packed"));
  });
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr("tensor " + kExpert5 + "w2.weight_packed lies at byte"),
                      HasSubstr("back to back")));
}

TEST_F(DamagedCheckpointTest, ExpertPartsNotAdjacent) {
  EditShard(2, [&](EditableShard& shard) {
    std::vector<EditableTensor>& tensors = shard.tensors();
    EditableTensor last = shard.Get(kExpert5 + "w3.weight_scale");
    shard.Remove(last.name);
    tensors.push_back(std::move(last));
  });
  ExpectRefused(ErrorCode::kCorrupt, HasSubstr("tensor " + kExpert5 + "w3.weight_scale lies at"));
}

TEST_F(DamagedCheckpointTest, ExpertInTwoShards) {
  const std::string name = kExpert5 + "w1.weight_packed";
  const EditableTensor tensor = EditableShard(ShardPath(2)).Get(name);
  EditShard(2, [&](EditableShard& shard) { shard.Remove(name); });
  EditShard(3, [&](EditableShard& shard) { shard.tensors().push_back(tensor); });
  EditIndex([&](Json& map) { map[name] = "model-00003-of-000016.safetensors"; });
  ExpectRefused(ErrorCode::kCorrupt, AllOf(HasSubstr(kExpert5), HasSubstr("back to back")));
}

TEST_F(DamagedCheckpointTest, MoreExpertsThanTheConfigHas) {
  EditJson(dir_ / "config.json", [](Json& file) { file["text_config"]["num_experts"] = 15; });
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr("model-00002-of-000016.safetensors"), HasSubstr("expected")));
  for (int shard = 2; shard <= 13;
       ++shard) {  // make the routers agree, so that only experts differ
    EditShard(shard, [&](EditableShard& s) {
      const std::string moe =
          "language_model.model.layers." + std::to_string(shard - 1) + ".block_sparse_moe.gate.";
      s.Get(moe + "weight").shape = {15, 128};
      s.Get(moe + "weight").bytes.resize(15 * 128 * 2);
      s.Get(moe + "e_score_correction_bias").shape = {15};
      s.Get(moe + "e_score_correction_bias").bytes.resize(15 * 4);
    });
  }
  ExpectRefused(ErrorCode::kCorrupt,
                AllOf(HasSubstr("experts.15."), HasSubstr("expected 15 experts")));
}

TEST_F(DamagedCheckpointTest, FewerExpertsThanTheConfigHas) {
  EditJson(dir_ / "config.json", [](Json& file) { file["text_config"]["num_experts"] = 17; });
  ExpectRefused(ErrorCode::kCorrupt, HasSubstr("block_sparse_moe.gate."));
}

TEST_F(DamagedCheckpointTest, ConfigOfAnotherSize) {
  EditJson(dir_ / "config.json", [](Json& file) { file["text_config"]["hidden_size"] = 256; });
  ExpectRefused(ErrorCode::kCorrupt, HasSubstr("does not belong to this config.json"));
}

TEST_F(DamagedCheckpointTest, FindRefusesOtherTensors) {
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), dir_.path());
  TensorSpec spec = LayoutOfEmbedding(checkpoint->config());
  spec.shape.dims[0] += 1;
  EXPECT_THROW(checkpoint->Find(spec), Error);
  spec.name = "language_model.model.nothing";
  try {
    checkpoint->Find(spec);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotFound);
  }
}

TEST(SkeletonTest, OfASmallModelOpens) {
  const std::string path = DataPath("official/model/config.json");
  const std::string json = ReadWholeFile(RealFileSystem(), path, 1 << 20);
  const TempDir dir;
  WriteSkeleton(ModelConfig::Parse(json, path), json, dir.path());
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), dir.path());
  EXPECT_EQ(checkpoint->num_shards(), 14u);
  EXPECT_EQ(checkpoint->ExpertSpan(1, 10).offset,
            checkpoint->ExpertSpan(1, 1).offset + checkpoint->expert_bytes());
}

}  // namespace
}  // namespace deltafin
