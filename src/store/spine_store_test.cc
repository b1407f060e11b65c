#include "store/spine_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "base/bf16.h"
#include "deltafin/error.h"
#include "io/read_queue.h"
#include "shared_data.h"
#include "store/spine_pieces.h"
#include "store/spine_reader.h"
#include "store/testing/checkpoint_editor.h"
#include "store/testing/hook_file_system.h"
#include "store/testing/simple_read_queue.h"

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

// Keeps copies of what it sees, as a GPU does.
class Keeper final : public WeightKeeper {
 public:
  bool Holds(uint64_t id) const override { return copies_.contains(id); }
  void SetOrigin(WeightOrigin* origin) override { origin_ = origin; }
  void SetSlots(std::byte*, uint64_t, int64_t) override {}
  void SetConstant(std::span<const float>) override {}
  void SetExpertOrigin(WeightOrigin*) override {}
  WeightOrigin* origin() const { return origin_; }
  // Its copy of the data of a matrix that is used.
  const std::byte* Use(const Matrix& w) {
    const auto bytes = static_cast<size_t>(w.rows * w.row_bytes());
    if (w.data != nullptr) copies_[w.id].assign(w.data, w.data + bytes);
    return copies_.at(w.id).data();
  }
  void Lose() { copies_.clear(); }
  size_t num_held() const { return copies_.size(); }

 private:
  std::map<uint64_t, std::vector<std::byte>> copies_;
  WeightOrigin* origin_ = nullptr;
};

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

  int64_t num_layers() const { return checkpoint_->config().num_layers; }

  // Nothing resident, and a ring that is as small as it may be.
  SpineStoreOptions Streamed(uint64_t piece_bytes) const {
    const SpineSource source = ReleasedSpine(*checkpoint_);
    const SpinePieces pieces(source, piece_bytes);
    return {piece_bytes, std::vector<bool>(pieces.size()), pieces.LargestRingBytes()};
  }
  std::unique_ptr<SpineStore> Make(const SpineStoreOptions& options) {
    return MakeSpineStore(*checkpoint_, ReleasedSpine(*checkpoint_), *queue_, options);
  }
  void UseAll(SpineStore& store, int64_t layer) {
    const auto lease = store.Acquire(layer);
    for (const MatrixSpec& spec : LayoutOfSpine(checkpoint_->config(), layer).matrices) {
      lease->ForEachPiece(spec.id, [](int64_t, const Matrix&) {});
    }
  }

  void CheckVectors(SpineLease& lease, int64_t layer) {
    for (const VectorSpec& spec : LayoutOfSpine(checkpoint_->config(), layer).vectors) {
      std::vector<float> expected = Widened(truth_.at(spec.tensor.name));
      ASSERT_GE(expected.size(), static_cast<size_t>(spec.size));
      if (!spec.second.name.empty()) {
        const std::vector<float> second = Widened(truth_.at(spec.second.name));
        for (size_t i = 0; i < expected.size(); ++i) expected[i] *= second[i];
      }
      const float* got = lease.Vector(spec.id);
      for (int64_t i = 0; i < spec.size; ++i) {
        ASSERT_EQ(got[i], expected[static_cast<size_t>(i)]) << spec.tensor.name << " " << i;
      }
    }
  }

  // Pieces are cut to piece_bytes, or to one row where that is more; resident ones are joined.
  static uint64_t LongestPiece(const SpineStoreOptions& options, int64_t row_bytes) {
    const std::vector<bool>& resident = options.resident;
    const bool joins = std::find(resident.begin(), resident.end(), true) != resident.end();
    return (joins ? SpinePieces::kMostJoined : 1) *
           std::max(options.piece_bytes, static_cast<uint64_t>(row_bytes));
  }

  void CheckMatrix(SpineLease& lease, const MatrixSpec& spec, const SpineStoreOptions& options) {
    const std::string& expected = truth_.at(spec.tensor.name).bytes;
    if (spec.id == SpineMatrix::kKvbProj) {
      const Matrix whole = lease.Whole(spec.id);
      ASSERT_EQ(whole.rows, spec.tensor.shape.dims[0]);
      ASSERT_EQ(std::memcmp(whole.data, expected.data(), expected.size()), 0);
      return;
    }
    int64_t next_row = 0;
    lease.ForEachPiece(spec.id, [&](int64_t first_row, const Matrix& rows) {
      ASSERT_EQ(first_row, next_row);
      ASSERT_EQ(rows.cols, spec.tensor.shape.dims[1]);
      ASSERT_EQ(rows.format, WeightFormat::kBf16);
      const size_t begin = static_cast<size_t>(first_row * rows.row_bytes());
      const size_t bytes = static_cast<size_t>(rows.rows * rows.row_bytes());
      if (spec.id != SpineMatrix::kRouter) {
        ASSERT_LE(bytes, LongestPiece(options, rows.row_bytes()));
      }
      ASSERT_LE(begin + bytes, expected.size());
      const std::byte* const data = rows.id != 0 ? keeper_.Use(rows) : rows.data;
      ASSERT_EQ(std::memcmp(data, expected.data() + begin, bytes), 0) << spec.tensor.name;
      next_row += rows.rows;
    });
    ASSERT_EQ(next_row, spec.tensor.shape.dims[0]);
  }

  HookFileSystem fs_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::map<std::string, EditableTensor> truth_;
  std::unique_ptr<ReadQueue> queue_ = MakeReadQueue({});
  Keeper keeper_;
};

TEST_P(SpineStoreTest, HandsOutTheTensorsOfTheFiles) {
  const SpineStoreOptions resident = AllResident(ReleasedSpine(*checkpoint_));
  for (const SpineStoreOptions& options :
       {resident, Streamed(resident.piece_bytes), Streamed(1), Streamed(3000)}) {
    const auto store = Make(options);
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t layer = 0; layer <= num_layers(); ++layer) {
        const auto lease = store->Acquire(layer);
        CheckVectors(*lease, layer);
        for (const MatrixSpec& spec : LayoutOfSpine(checkpoint_->config(), layer).matrices) {
          CheckMatrix(*lease, spec, options);
        }
      }
    }
  }
}

TEST_P(SpineStoreTest, ResidentLayersAreReadOnce) {
  std::atomic<int> reads = 0;
  fs_.set_hook([&](const std::string&, uint64_t, std::span<std::byte>) { ++reads; });
  const auto store = Make(AllResident(ReleasedSpine(*checkpoint_)));
  EXPECT_EQ(reads, 0);  // nothing before its first use
  EXPECT_EQ(store->ResidentRouter(1), nullptr);
  for (int64_t layer = 0; layer <= num_layers(); ++layer) UseAll(*store, layer);
  const int after_first = reads;
  EXPECT_GT(after_first, 0);
  const std::byte* data = store->Acquire(3)->Whole(SpineMatrix::kKvbProj).data;
  EXPECT_EQ(store->Acquire(3)->Whole(SpineMatrix::kKvbProj).data, data);
  for (int64_t layer = num_layers(); layer >= 0; --layer) UseAll(*store, layer);
  EXPECT_EQ(reads, after_first);

  const std::string& router =
      truth_.at("language_model.model.layers.1.block_sparse_moe.gate.weight").bytes;
  ASSERT_NE(store->ResidentRouter(1), nullptr);
  EXPECT_EQ(std::memcmp(store->ResidentRouter(1)->data, router.data(), router.size()), 0);
  EXPECT_NE(store->ResidentVector(1, SpineVector::kRouterBias), nullptr);
}

TEST_P(SpineStoreTest, WhatTheKeeperHoldsIsReadOnce) {
  std::atomic<int> reads = 0;
  fs_.set_hook([&](const std::string&, uint64_t, std::span<std::byte>) { ++reads; });
  SpineStoreOptions options = Streamed(50000);
  const SpinePieces pieces(ReleasedSpine(*checkpoint_), options.piece_bytes);
  options.kept.assign(pieces.size(), true);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces.IsWhole(i)) options.kept[i] = false;
    if (pieces.IsWhole(i)) options.resident[i] = true;
    options.copied.push_back(pieces.IsWhole(i));
  }
  options.keeper = &keeper_;
  auto store = Make(options);
  const auto check_all = [&] {
    for (int64_t layer = 0; layer <= num_layers(); ++layer) {
      const auto lease = store->Acquire(layer);
      for (const MatrixSpec& spec : LayoutOfSpine(checkpoint_->config(), layer).matrices) {
        CheckMatrix(*lease, spec, options);
      }
    }
  };
  const auto is_kept = [&] { return store->Acquire(1)->IsKept(SpineMatrix::kRoutedDown); };
  EXPECT_FALSE(is_kept());
  check_all();
  const int after_first = reads;
  check_all();
  EXPECT_TRUE(is_kept());
  EXPECT_EQ(reads, after_first);
  ASSERT_NE(store->ResidentRouter(1), nullptr);
  EXPECT_EQ(store->ResidentRouter(1)->data, nullptr);
  EXPECT_TRUE(keeper_.Holds(store->ResidentRouter(1)->id));

  // One of them, asked for by whoever lost it; then all.
  const uint64_t id = store->ResidentRouter(1)->id;
  std::vector<std::byte> bytes;
  const Matrix router = keeper_.origin()->ReadAgain(id, bytes);
  EXPECT_EQ(std::memcmp(router.data, keeper_.Use(*store->ResidentRouter(1)), bytes.size()), 0);
  keeper_.Lose();
  EXPECT_EQ(store->ResidentRouter(1), nullptr);
  EXPECT_FALSE(is_kept());
  const int before_loss = reads;
  check_all();
  EXPECT_GE(reads, before_loss + static_cast<int>(pieces.size()) / 2);
  store = nullptr;
  EXPECT_EQ(keeper_.origin(), nullptr);
}

// Neighbours that stay in RAM are handed out together, eight at most.
TEST_P(SpineStoreTest, ResidentNeighboursAreOne) {
  SpineStoreOptions options = Streamed(1);  // a row each
  const SpinePieces pieces(ReleasedSpine(*checkpoint_), options.piece_bytes);
  const SpineMatrix id = LayoutOfSpine(checkpoint_->config(), 0).matrices[0].id;
  const auto rows = static_cast<int64_t>(pieces.begin(0, 1));
  ASSERT_GT(rows, 30);
  for (int64_t i = 0; i < rows; ++i) options.resident[static_cast<size_t>(i)] = i != 3 && i != 13;
  const auto store = Make(options);
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<int64_t> got;
    store->Acquire(0)->ForEachPiece(
        id, [&](int64_t, const Matrix& piece) { got.push_back(piece.rows); });
    got.resize(7);
    EXPECT_THAT(got, testing::ElementsAre(3, 1, 8, 1, 1, 8, 8));
    CheckMatrix(*store->Acquire(0), LayoutOfSpine(checkpoint_->config(), 0).matrices[0], options);
  }
}

// While a piece is on its way, whoever waits for it does something else as long as there is
// anything.
TEST_P(SpineStoreTest, WaitingLeavesTimeForOtherThings) {
  const SpineStoreOptions resident = AllResident(ReleasedSpine(*checkpoint_));
  const SpineMatrix id = LayoutOfSpine(checkpoint_->config(), 0).matrices[0].id;
  SimpleReadQueue queue;
  const auto store = MakeSpineStore(*checkpoint_, ReleasedSpine(*checkpoint_), queue, resident);
  queue.set_closed(true);
  int pieces = 0;
  int calls = 0;
  const auto use = [&](int64_t, const Matrix&) { ++pieces; };
  store->Acquire(0)->ForEachPiece(id, use, [&] {
    EXPECT_EQ(pieces, 0);
    if (++calls == 3) queue.set_closed(false);
    return calls < 3;
  });
  EXPECT_EQ(calls, 3);  // it has said that there is no more
  EXPECT_GT(pieces, 0);
  const int all = pieces;
  store->Acquire(0)->ForEachPiece(id, use, [&] { return ++calls, true; });
  EXPECT_EQ(calls, 3);  // there was nothing to wait for
  EXPECT_EQ(pieces, 2 * all);

  // Streamed, and as long as it takes.
  const auto streamed =
      MakeSpineStore(*checkpoint_, ReleasedSpine(*checkpoint_), queue, Streamed(3000));
  pieces = 0;
  streamed->Acquire(0)->ForEachPiece(id, use, [] {
    std::this_thread::yield();
    return true;
  });
  EXPECT_GT(pieces, all);
}

// What was launched ahead of its need is read again also if it fails while it is waited for.
TEST_P(SpineStoreTest, AReadThatFailsWhileItIsWaitedForIsTriedAgain) {
  std::atomic<int> reads = 0;
  SimpleReadQueue queue(1);
  const auto store =
      MakeSpineStore(*checkpoint_, ReleasedSpine(*checkpoint_), queue, Streamed(20000));
  queue.set_closed(true);
  const auto lease = store->Acquire(0);
  fs_.set_hook([&](const std::string& path, uint64_t, std::span<std::byte>) {
    if (reads++ > 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until it is waited for
    throw Error(ErrorCode::kIo, path + ": injected");
  });
  int pieces = 0;
  lease->ForEachPiece(
      LayoutOfSpine(checkpoint_->config(), 0).matrices[0].id,
      [&](int64_t, const Matrix&) { ++pieces; },
      [&] {
        queue.set_closed(false);
        return false;
      });
  EXPECT_GT(pieces, 0);
  EXPECT_GT(reads, 1);
  fs_.set_hook(nullptr);
}

// With a ring that holds everything, the next pass is read while nobody asks.
TEST_P(SpineStoreTest, StreamedLayersAreReadAhead) {
  const SpineSource source = ReleasedSpine(*checkpoint_);
  const StoredMatrix& first = source.layers[0].matrices[0];
  std::atomic<int> reads_of_first = 0;
  fs_.set_hook([&](const std::string& path, uint64_t offset, std::span<std::byte>) {
    reads_of_first += path == first.file->path() && offset == first.offset;
  });
  SpineStoreOptions options = Streamed(1 << 20);
  options.ring_bytes = 2 * SpinePieces(source, options.piece_bytes).TotalRingBytes();
  const auto store = Make(options);
  for (int64_t layer = 0; layer <= num_layers(); ++layer) UseAll(*store, layer);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (reads_of_first < 2 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ASSERT_EQ(reads_of_first, 2);
  const auto lease = store->Acquire(0);
  CheckMatrix(*lease, LayoutOfSpine(checkpoint_->config(), 0).matrices[0], options);
  EXPECT_EQ(reads_of_first, 2);
  fs_.set_hook(nullptr);
}

// First all reads of a pass fail, then each of them once. If the pass waited for it, it ends with
// its error and the next one works; what failed ahead of its need is read again and nobody notices.
TEST_P(SpineStoreTest, AFailedReadCanBeTriedAgain) {
  for (const bool resident : {true, false}) {
    SpineStoreOptions options = Streamed(20000);
    options.resident.assign(options.resident.size(), resident);
    const auto store = Make(options);
    int failures = 0;
    constexpr int kAll = -1;
    for (int fail_at = kAll; fail_at < 40; ++fail_at) {
      std::atomic<int> reads = 0;
      fs_.set_hook([&](const std::string& path, uint64_t, std::span<std::byte>) {
        if (fail_at == kAll || reads++ == fail_at) throw Error(ErrorCode::kIo, path + ": injected");
      });
      try {
        for (int64_t layer = 0; layer < 4; ++layer) UseAll(*store, layer);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_THAT(e.what(), testing::EndsWith(": injected"));
        ++failures;
      }
      fs_.set_hook(nullptr);
      if (fail_at == kAll && !resident) {
        EXPECT_EQ(failures, 1);
      }
      const int64_t layer = (fail_at + 4) % 4;
      const auto lease = store->Acquire(layer);
      for (const MatrixSpec& spec : LayoutOfSpine(checkpoint_->config(), layer).matrices) {
        CheckMatrix(*lease, spec, options);
      }
    }
  }
}

// Any plan, any order of use, failing reads: what is handed out is always what the files hold.
TEST_P(SpineStoreTest, AnyPlanAndAnyOrderGiveTheSameBytes) {
  std::mt19937 random(7);
  int failures = 0;
  size_t held = 0;
  for (int round = 0; round < 12; ++round) {
    SpineStoreOptions options = Streamed(1 + random() % 60000);
    options.ring_bytes += random() % (3 * options.ring_bytes);
    for (size_t i = 0; i < options.resident.size(); ++i) {
      options.resident[i] = random() % 3 == 0;
    }
    if (round % 2 == 0) {
      const SpinePieces pieces(ReleasedSpine(*checkpoint_), options.piece_bytes);
      for (size_t i = 0; i < pieces.size(); ++i) {
        options.kept.push_back(!options.resident[i] && !pieces.IsWhole(i) && random() % 3 != 0);
      }
      keeper_.Lose();
      options.keeper = &keeper_;
    }
    std::atomic<uint32_t> reads = 0;
    const auto fail_every = static_cast<uint32_t>(round % 3 == 0 ? 0 : 40 + random() % 100);
    fs_.set_hook([&reads, fail_every](const std::string& path, uint64_t, std::span<std::byte>) {
      if (fail_every != 0 && ++reads % fail_every == 0) {
        throw Error(ErrorCode::kIo, path + ": injected");
      }
    });
    ReadQueueOptions queue_options;
    queue_options.depth = 1 + static_cast<int>(random() % 4);
    queue_options.split_bytes = 4096 * (1 + random() % 8);
    const auto queue = MakeReadQueue(queue_options);
    const auto store = MakeSpineStore(*checkpoint_, ReleasedSpine(*checkpoint_), *queue, options);
    int64_t layer = 0;
    for (int step = 0; step < 60; ++step) {
      // Mostly the order of the forward pass; sometimes a pass that was cancelled, or a jump.
      if (random() % 8 == 0)
        layer = random() % 2 == 0 ? 0 : static_cast<int64_t>(random()) % (num_layers() + 1);
      try {
        const auto lease = store->Acquire(layer);
        for (const MatrixSpec& spec : LayoutOfSpine(checkpoint_->config(), layer).matrices) {
          if (random() % 20 == 0) break;     // the rest of the layer is not used
          if (random() % 20 == 0) continue;  // nor this matrix
          CheckMatrix(*lease, spec, options);
          if (random() % 30 == 0) CheckMatrix(*lease, spec, options);
        }
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), testing::EndsWith(": injected"));
        ++failures;
      }
      layer = layer == num_layers() ? 0 : layer + 1;
      if (step == 40) {
        held += keeper_.num_held();
        keeper_.Lose();
      }
    }
  }
  fs_.set_hook(nullptr);
  EXPECT_GT(held, 100u);
  EXPECT_GT(failures, 2);
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
  Make(Streamed(1000))->ReadEmbeddings(tokens, rows.data());
  EXPECT_EQ(bytes_read, tokens.size() * hidden * 2);  // rows, not the table
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (size_t d = 0; d < hidden; ++d) {
      ASSERT_EQ(rows[i * hidden + d], table[static_cast<size_t>(tokens[i]) * hidden + d]);
    }
  }
}

TEST_P(SpineStoreTest, RefusesTokensOutsideTheVocabulary) {
  const auto store = Make(Streamed(1000));
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
