// A latent cache of which most pages are in a file behaves as one in memory, bit for bit.
#include "model/cache_spill.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "base/format.h"
#include "base/thread_pool.h"
#include "deltafin/error.h"
#include "device/cpu/cpu_device.h"
#include "io/testing_file_system.h"
#include "model/sequence_state.h"
#include "test_rounds.h"

namespace deltafin {
namespace {

constexpr MlaShape kShape{.num_heads = 2, .nope_dim = 4, .rope_dim = 6, .v_dim = 4, .kv_lora = 10};
constexpr int64_t kMaxPass = 600;

// Layer 0 is KDA, the others are MLA.
ModelConfig SpillConfig() {
  ModelConfig config;
  config.num_layers = 3;
  config.is_mla = {false, true, true};
  config.kda_heads = 1;
  config.kda_head_dim = 8;
  config.conv_kernel = 4;
  config.kv_lora_rank = kShape.kv_lora;
  config.qk_rope_head_dim = kShape.rope_dim;
  return config;
}

class CacheSpillTest : public testing::Test {
 protected:
  ~CacheSpillTest() override {
    spill_.reset();
    std::filesystem::remove_all(folder_);
  }

  CacheSpill* Spill(int64_t resident_pages, const ReadQueueOptions& reads = {},
                    CacheFormat format = CacheFormat::kF32) {
    spill_.reset();
    queue_ = MakeReadQueue(reads);
    spill_ = std::make_unique<CacheSpill>(config_, format, *device_, *queue_,
                                          files_.CreateScratch(folder_),
                                          CacheSpillOptions{resident_pages, kMaxPass, 2});
    return spill_.get();
  }

  std::vector<float> Values(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(random_()) * 0x1p-31f - 1;
    return values;
  }

  // What a pass does with the cache; returns what was attended to.
  std::vector<float> Pass(SequenceState& state, const std::vector<float>& latents,
                          const std::vector<float>& queries, int64_t count) {
    const int64_t first = state.num_tokens();
    const int64_t outputs = count * kShape.num_heads * kShape.kv_lora;
    std::vector<float> out(static_cast<size_t>(2 * outputs));
    state.Reserve(first + count);
    for (int64_t layer : {1, 2}) {
      const float* latent = latents.data() + (layer - 1) * count * kShape.latent_dim();
      const LatentCacheView cache = state.BeginAppend(layer, first, count);
      device_->MlaAppend(cache, latent, first, count, kShape);
      device_->MlaAttend(out.data() + (layer - 1) * outputs, queries.data(), cache, first, count,
                         kShape, 0.5f);
      state.EndAppend(layer, first, count);
    }
    state.Advance(count);
    return out;
  }

  // The same random pass for both; false when they differ.
  bool SamePass(SequenceState& a, SequenceState& b, int64_t count) {
    const auto latents = Values(2 * count * kShape.latent_dim());
    const auto queries = Values(count * kShape.num_heads * kShape.latent_dim());
    return Pass(a, latents, queries, count) == Pass(b, latents, queries, count);
  }
  bool SamePasses(SequenceState& a, SequenceState& b, int64_t tokens) {
    for (; tokens > kMaxPass; tokens -= kMaxPass) {
      if (!SamePass(a, b, kMaxPass)) return false;
    }
    return SamePass(a, b, tokens);
  }

  const std::string folder_ = testing::TempDir() + "cache_spill_test_" + std::to_string(::getpid());
  std::minstd_rand random_{5};
  ThreadPool pool_{2};
  std::unique_ptr<Device> device_ = MakeCpuDevice(pool_);
  ModelConfig config_ = SpillConfig();
  FaultyFileSystem files_{RealFileSystem()};
  std::unique_ptr<ReadQueue> queue_;
  std::unique_ptr<CacheSpill> spill_;
};

// Passes of any length, tokens taken back, saved states, empty sequences; two sequences by turns,
// and guesses, right and wrong, at what comes next.
TEST_F(CacheSpillTest, EqualsACacheInMemory) {
  const ReadQueueOptions ways[] = {
      {.engine = ReadEngine::kThreads, .mode = ReadMode::kBuffered, .depth = 2},
      {.engine = ReadEngine::kThreads, .mode = ReadMode::kDirect, .depth = 8}};
  for (const CacheFormat format : {CacheFormat::kF32, CacheFormat::kBf16}) {
    for (const int64_t resident : SomeOf<int64_t>({0, 1, 5})) {
      CacheSpill* const spill = Spill(resident, ways[resident % 2], format);
      SequenceState spilled[] = {{config_, *device_, format, spill},
                                 {config_, *device_, format, spill}};
      SequenceState whole[] = {{config_, *device_, format}, {config_, *device_, format}};
      for (int step = 0; step < 70; ++step) {
        SCOPED_TRACE(testing::Message() << resident << " pages stay, step " << step);
        if (random_() % 2 == 0) {
          const SequenceState& guessed = spilled[random_() % 2];
          guessed.ReadAhead(1 + static_cast<int64_t>(random_() % 2), guessed.num_tokens());
        }
        const size_t i = random_() % 2;
        SequenceState& a = spilled[i];
        SequenceState& b = whole[i];
        const auto choice = random_() % 16;
        if (choice < 8) {
          ASSERT_TRUE(SamePass(a, b, 1 + static_cast<int64_t>(random_() % 12)));
        } else if (choice < 12) {
          ASSERT_TRUE(SamePass(a, b, 1 + static_cast<int64_t>(random_() % kMaxPass)));
        } else if (choice < 14) {
          const auto back = std::min<int64_t>(a.num_tokens(), random_() % (random_() % 400 + 1));
          a.Truncate(a.num_tokens() - back);
          b.Truncate(b.num_tokens() - back);
        } else if (choice == 14) {
          const std::vector<std::byte> saved = b.Save();
          ASSERT_TRUE(a.Save() == saved);
          a.Restore(saved);
        } else if (random_() % 4 == 0) {
          a.Clear();
          b.Clear();
        }
      }
      for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(spilled[i].Save() == whole[i].Save());
      EXPECT_GT(spill->bytes_read(), 0u);
    }
  }
}

// More pages than the ring holds, and walks of several groups of positions.
TEST_F(CacheSpillTest, LongContexts) {
  CacheSpill* const spill = Spill(2);
  SequenceState spilled(config_, *device_, CacheFormat::kF32, spill);
  SequenceState whole(config_, *device_, CacheFormat::kF32);
  ASSERT_TRUE(SamePasses(spilled, whole, std::max(5'000, Rounds(12'000))));
  ASSERT_TRUE(SamePass(spilled, whole, 1));
  ASSERT_TRUE(SamePass(spilled, whole, 200));
  EXPECT_TRUE(spilled.Save() == whole.Save());
  // Half a page for each layer at most is in memory besides those that stay.
  EXPECT_EQ(spilled.MemoryBytes(), SequenceState::Bytes(config_, CacheFormat::kF32, 0) +
                                       2 * 3 * CacheSpill::PageBytes(config_, CacheFormat::kF32));
}

// What was read ahead is not read again, unless that failed.
TEST_F(CacheSpillTest, ReadsAhead) {
  CacheSpill* const spill = Spill(1, {.engine = ReadEngine::kThreads, .depth = 1});  // in order
  SequenceState spilled(config_, *device_, CacheFormat::kF32, spill);
  SequenceState whole(config_, *device_, CacheFormat::kF32);
  constexpr int64_t kPages = 20;  // in the file, of each layer
  constexpr int64_t kRing = 16;
  ASSERT_TRUE(SamePasses(spilled, whole, (kPages + 2) * kCachePageTokens - 9));
  const uint64_t page_bytes = CacheSpill::PageBytes(config_, CacheFormat::kF32);
  for (const int64_t failing : {0, 1}) {
    const uint64_t before = spill->bytes_read();
    files_.FailReads("scratch", 0, failing);
    spilled.ReadAhead(1, spilled.num_tokens());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const uint64_t ahead = static_cast<uint64_t>(kRing - failing) * page_bytes;
    while (spill->bytes_read() < before + ahead && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(spill->bytes_read(), before + ahead);
    ASSERT_TRUE(SamePass(spilled, whole, 1));
    EXPECT_EQ(spill->bytes_read(), before + 2 * kPages * page_bytes);
  }
}

TEST_F(CacheSpillTest, RoomInTheFileIsUsedAgain) {
  CacheSpill* const spill = Spill(0);
  uint64_t most = 0;
  for (int round = 0; round < 3; ++round) {
    SequenceState spilled(config_, *device_, CacheFormat::kF32, spill);
    SequenceState whole(config_, *device_, CacheFormat::kF32);
    ASSERT_TRUE(SamePasses(spilled, whole, 3'000));
    if (round == 0) most = spill->file_bytes();
    EXPECT_EQ(spill->file_bytes(), most);
  }
  // The last page of each layer is in memory.
  EXPECT_EQ(most, 2 * 11 * 16'384u);
}

// Each failing read and write, in turn, is one error; then the sequence is as good as a new one.
TEST_F(CacheSpillTest, FailuresAreErrors) {
  CacheSpill* const spill = Spill(1, {.engine = ReadEngine::kThreads, .depth = 1});
  SequenceState spilled(config_, *device_, CacheFormat::kF32, spill);
  SequenceState whole(config_, *device_, CacheFormat::kF32);
  for (const bool writes : {true, false}) {
    for (int64_t skip = 0;; ++skip) {
      spilled.Clear();
      whole.Clear();
      files_.ClearFaults();
      if (writes) {
        files_.FailWrites(ErrorCode::kNoSpace, skip);
      } else {
        files_.FailReads("scratch", skip);
      }
      try {
        ASSERT_TRUE(SamePasses(spilled, whole, 1'400));
        spilled.Truncate(1'100);
        whole.Truncate(1'100);
        ASSERT_TRUE(SamePass(spilled, whole, 1));
        ASSERT_TRUE(spilled.Save() == whole.Save());
        // Four pages of each layer are written.
        EXPECT_GE(skip, 8);
        break;  // more than there are
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), writes ? ErrorCode::kNoSpace : ErrorCode::kIo);
        const std::string what = error.what();
        EXPECT_NE(what.find("latent cache"), std::string::npos) << what;
        EXPECT_NE(what.find("--spill-dir"), std::string::npos) << what;
      }
    }
  }
}

TEST_F(CacheSpillTest, BytesCountsRingAndOpenPages) {
  // 600 tokens lie in four pages at most; 2 x 2,048 tokens are read ahead.
  const uint64_t page = 256 * 16 * 4;
  EXPECT_EQ(CacheSpill::Bytes(config_, CacheFormat::kF32, {0, kMaxPass, 2}),
            4 * page + 16 * ReadBufferBytes(page));
  EXPECT_EQ(SequenceState::Bytes(config_, CacheFormat::kF32, 1'000'000, 3) -
                SequenceState::Bytes(config_, CacheFormat::kF32, 0),
            2 * 4 * page);
  EXPECT_EQ(SequenceState::Bytes(config_, CacheFormat::kF32, 700, 3),
            SequenceState::Bytes(config_, CacheFormat::kF32, 700));
}

}  // namespace
}  // namespace deltafin
