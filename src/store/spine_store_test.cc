#include "store/spine_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>

#include "base/bf16.h"
#include "deltafin/error.h"
#include "shared_data.h"
#include "store/testing/checkpoint_editor.h"
#include "store/testing/hook_file_system.h"

namespace deltafin {
namespace {

std::vector<float> Widened(const EditableTensor& tensor) {
  std::vector<float> values;
  if (tensor.dtype == "F32") {
    values.resize(tensor.bytes.size() / 4);
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }
  std::vector<uint16_t> bits(tensor.bytes.size() / 2);
  std::memcpy(bits.data(), tensor.bytes.data(), tensor.bytes.size());
  for (uint16_t b : bits) values.push_back(Bf16ToFloat(b));
  return values;
}

class SpineStoreTest : public testing::TestWithParam<std::string> {
 protected:
  SpineStoreTest() : checkpoint_(Checkpoint::Open(fs_, GetParam())) {
    for (uint32_t shard = 0; shard < checkpoint_->num_shards(); ++shard) {
      EditableShard file(checkpoint_->file(shard).path());
      for (EditableTensor& t : file.tensors()) {
        const std::string name = t.name;
        truth_[name] = std::move(t);
      }
    }
  }

  HookFileSystem fs_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::map<std::string, EditableTensor> truth_;
};

TEST_P(SpineStoreTest, HandsOutTheTensorsOfTheFiles) {
  const ModelConfig& config = checkpoint_->config();
  const auto store = MakeResidentSpineStore(*checkpoint_);
  for (int64_t layer = 0; layer <= config.num_layers; ++layer) {
    const LayerLayout layout =
        layer < config.num_layers ? LayoutOfLayer(config, layer) : LayoutOfTop(config);
    const auto lease = store->Acquire(layer);
    for (const VectorSpec& spec : layout.vectors) {
      std::vector<float> expected = Widened(truth_.at(spec.tensor.name));
      ASSERT_GE(expected.size(), static_cast<size_t>(spec.size));
      if (!spec.second.name.empty()) {
        const std::vector<float> second = Widened(truth_.at(spec.second.name));
        for (size_t i = 0; i < expected.size(); ++i) expected[i] *= second[i];
      }
      const float* got = lease->Vector(spec.id);
      for (int64_t i = 0; i < spec.size; ++i) {
        ASSERT_EQ(got[i], expected[static_cast<size_t>(i)]) << spec.tensor.name << " " << i;
      }
    }
    for (const MatrixSpec& spec : layout.matrices) {
      const std::string& expected = truth_.at(spec.tensor.name).bytes;
      int64_t next_row = 0;
      lease->ForEachPiece(spec.id, [&](int64_t first_row, const Matrix& rows) {
        ASSERT_EQ(first_row, next_row);
        ASSERT_EQ(rows.cols, spec.tensor.shape.dims[1]);
        ASSERT_EQ(rows.format, WeightFormat::kBf16);
        const size_t begin = static_cast<size_t>(first_row * rows.row_bytes());
        const size_t bytes = static_cast<size_t>(rows.rows * rows.row_bytes());
        ASSERT_LE(begin + bytes, expected.size());
        ASSERT_EQ(std::memcmp(rows.data, expected.data() + begin, bytes), 0) << spec.tensor.name;
        next_row += rows.rows;
      });
      ASSERT_EQ(next_row, spec.tensor.shape.dims[0]);
      const Matrix whole = lease->Whole(spec.id);
      EXPECT_EQ(whole.rows, spec.tensor.shape.dims[0]);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(whole.data) % 64, 0u);
      EXPECT_EQ(std::memcmp(whole.data, expected.data(), expected.size()), 0);
    }
  }
}

TEST_P(SpineStoreTest, ReadsALayerOnce) {
  std::atomic<int> reads = 0;
  fs_.set_hook([&](const std::string&, uint64_t, std::span<std::byte>) { ++reads; });
  const auto store = MakeResidentSpineStore(*checkpoint_);
  EXPECT_EQ(reads, 0);  // nothing before its first use
  const std::byte* data = store->Acquire(4)->Whole(SpineMatrix::kOProj).data;
  const int after_first = reads;
  EXPECT_GT(after_first, 0);
  EXPECT_EQ(store->Acquire(4)->Whole(SpineMatrix::kOProj).data, data);
  EXPECT_EQ(reads, after_first);
}

TEST_P(SpineStoreTest, AFailedReadCanBeTriedAgain) {
  const auto store = MakeResidentSpineStore(*checkpoint_);
  // Fails every read of the layer once, the first, the second, ...
  int failures = 0;
  for (int fail_at = 0;; ++fail_at) {
    int reads = 0;
    fs_.set_hook([&](const std::string& path, uint64_t, std::span<std::byte>) {
      if (reads++ == fail_at) throw Error(ErrorCode::kIo, path + ": injected");
    });
    try {
      store->Acquire(3);
      break;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kIo);
      ++failures;
    }
  }
  const LayerLayout layout = LayoutOfLayer(checkpoint_->config(), 3);
  EXPECT_GE(failures, static_cast<int>(layout.vectors.size() + layout.matrices.size()));
  fs_.set_hook(nullptr);
  const std::string& expected =
      truth_.at("language_model.model.layers.3.self_attn.kv_b_proj.weight").bytes;
  EXPECT_EQ(std::memcmp(store->Acquire(3)->Whole(SpineMatrix::kKvbProj).data, expected.data(),
                        expected.size()),
            0);
}

TEST_P(SpineStoreTest, ReadsEmbeddingRows) {
  const ModelConfig& config = checkpoint_->config();
  const std::vector<float> table = Widened(truth_.at("language_model.model.embed_tokens.weight"));
  const std::vector<TokenId> tokens = {0, 5, static_cast<TokenId>(config.vocab_size - 1), 5};
  const size_t hidden = static_cast<size_t>(config.hidden_size);
  std::vector<float> rows(tokens.size() * hidden);
  uint64_t bytes_read = 0;
  fs_.set_hook([&](const std::string&, uint64_t, std::span<std::byte> bytes) {
    bytes_read += bytes.size();
  });
  MakeResidentSpineStore(*checkpoint_)->ReadEmbeddings(tokens, rows.data());
  EXPECT_EQ(bytes_read, tokens.size() * hidden * 2);  // rows, not the table
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (size_t d = 0; d < hidden; ++d) {
      ASSERT_EQ(rows[i * hidden + d], table[static_cast<size_t>(tokens[i]) * hidden + d]);
    }
  }
}

TEST_P(SpineStoreTest, RefusesTokensOutsideTheVocabulary) {
  const auto store = MakeResidentSpineStore(*checkpoint_);
  std::vector<float> rows(static_cast<size_t>(2 * checkpoint_->config().hidden_size), 7.0f);
  for (const TokenId bad : {-1, static_cast<TokenId>(checkpoint_->config().vocab_size)}) {
    const std::vector<TokenId> tokens = {0, bad};
    try {
      store->ReadEmbeddings(tokens, rows.data());
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(e.what(), testing::HasSubstr("token id " + std::to_string(bad)));
    }
  }
  for (float value : rows) ASSERT_EQ(value, 7.0f);  // nothing was written
}

INSTANTIATE_TEST_SUITE_P(Models, SpineStoreTest,
                         testing::Values(DataPath("official/model"), NanoDir()),
                         [](const auto& model) { return model.index == 0 ? "official" : "nano"; });

}  // namespace
}  // namespace deltafin
