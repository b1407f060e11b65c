// Where weights come from, when and how they are read decides time, never a bit: every budget with
// every way of reading, with and without hints, from one folder and from several.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>

#include "deltafin/convert.h"
#include "engine/engine_impl.h"
#include "engine_harness.h"
#include "least_budget.h"
#include "shared_data.h"
#include "store/memory_plan.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;

using Rows = std::vector<std::vector<float>>;

class StoreBitsTest : public testing::TestWithParam<SpineFormat> {
 protected:
  StoreBitsTest() {
    for (const auto& entry : fs::directory_iterator(NanoDir())) {
      if (!entry.is_regular_file()) continue;
      // Copies, so that the page cache can be emptied of them.
      fs::copy(entry.path(), dir_ / entry.path().filename().string());
    }
    if (GetParam() == SpineFormat::kInt8) ConvertSpineToInt8({dir_.path(), {}, 2, nullptr});
    options_.model_dir = dir_.path();
    options_.threads = 2;
    options_.context_tokens = 256;
    options_.spine = GetParam();
    std::mt19937 random(3);
    for (int i = 0; i < 24; ++i) tokens_.push_back(static_cast<TokenId>(random() % 4000));
  }

  std::unique_ptr<EngineImpl> Open(const EngineParts& parts) {
    return OpenAndFollow(options_, parts);
  }

  // A prompt in one pass, then token by token; twice, so that the second finds what the first read.
  Rows Logits(EngineImpl& engine) {
    Rows rows;
    for (int round = 0; round < 2; ++round) {
      const auto session = engine.NewSession();
      for (const Rows& some : {AppendAll(*session, std::span(tokens_).first(9), 0),
                               AppendAll(*session, std::span(tokens_).subspan(9), 1)}) {
        rows.insert(rows.end(), some.begin(), some.end());
      }
    }
    return rows;
  }

  void EmptyPageCache() const {
    for (const auto& entry : fs::recursive_directory_iterator(dir_.path())) {
      const int file = ::open(entry.path().c_str(), O_RDONLY);
      if (file < 0) continue;
      ::fsync(file);
      ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      ::close(file);
    }
  }

  const TempDir dir_;
  EngineOptions options_;
  std::vector<TokenId> tokens_;
};

TEST_P(StoreBitsTest, EveryBudgetAndWayOfReading) {
  options_.prefetch = Prefetch::kOff;
  EngineParts plain;
  plain.keep_heat = false;
  const Rows want = Logits(*Open(plain));
  int runs = 0;
  int streamed = 0;
  // Above the least, which is what the process takes at that moment; then all of the machine.
  for (const uint64_t more : {kMiB, 13 * kMiB, uint64_t{0}}) {
    for (const ReadEngine kind : {ReadEngine::kThreads, ReadEngine::kIoUring}) {
      for (const ReadMode mode : {ReadMode::kBuffered, ReadMode::kDirect}) {
        for (const Prefetch prefetch : {Prefetch::kOff, Prefetch::kAuto}) {
          options_.prefetch = prefetch;
          options_.ram_bytes = more == 0 ? 0 : LeastRam(options_) + more;
          EngineParts parts;
          parts.reads = {{0, {kind, mode, 6, uint64_t{1} << 16, nullptr}}};
          std::unique_ptr<EngineImpl> engine;
          try {
            engine = Open(parts);  // heat of the runs before: warm starts
          } catch (const Error& e) {
            ASSERT_EQ(e.code(), ErrorCode::kUnsupported);  // no io_uring here
            continue;
          }
          if (mode == ReadMode::kBuffered) EmptyPageCache();
          ++runs;
          streamed += !engine->memory_plan().spine_is_resident;
          EXPECT_EQ(Logits(*engine), want) << more << " bytes more, " << static_cast<int>(kind)
                                           << static_cast<int>(mode) << static_cast<int>(prefetch);
        }
      }
    }
  }
  EXPECT_GE(runs, 12);            // all that need no io_uring
  EXPECT_GE(3 * streamed, runs);  // those with the least
}

TEST_P(StoreBitsTest, PinnedLayersPreloadedAndProfiled) {
  EngineParts parts;
  parts.keep_heat = false;  // no reads but those of the passes
  options_.prefetch = Prefetch::kOff;
  const Rows want = Logits(*Open(parts));
  for (const int64_t pin : {0, 1, 5, 1000}) {
    options_.pin_layers = pin;
    options_.profile = true;
    const auto engine = Open(parts);
    EXPECT_EQ(engine->memory_plan().spine_is_resident, pin == 1000);
    EXPECT_EQ(engine->memory_plan().spine_bytes == 0, pin == 0);
    const uint64_t before = engine->counters().spine_bytes + engine->counters().head_bytes;
    engine->Preload([] { return true; });
    const EngineCounters preloaded = engine->counters();
    EXPECT_EQ(preloaded.spine_bytes + preloaded.head_bytes > before, pin > 0);
    EXPECT_EQ(Logits(*engine), want) << pin;
    const EngineCounters counters = engine->counters();
    EXPECT_EQ(counters.passes, 2 * (tokens_.size() - 9 + 1));
    EXPECT_EQ(counters.positions, 2 * tokens_.size());
    for (const Phase phase : {Phase::kKda, Phase::kMla, Phase::kDense, Phase::kShared,
                              Phase::kExperts, Phase::kHead, Phase::kOther}) {
      EXPECT_GT(counters.phase_seconds(phase), 0) << PhaseName(phase);
    }
    const auto row_bytes = static_cast<uint64_t>(engine->config().hidden_size) * 2;
    EXPECT_EQ(counters.embedding_bytes, 2 * tokens_.size() * row_bytes);
    EXPECT_EQ(counters.expert_bytes, engine->expert_counters().bytes_read());
    if (pin == 1000) {  // each byte of the spine once, and the small tensors
      const uint64_t all = counters.spine_bytes + counters.head_bytes;
      EXPECT_GE(all, engine->info().spine_bytes);
      EXPECT_LE(all, engine->info().spine_bytes + engine->memory_plan().tables_bytes);
    }
    EXPECT_GT(counters.disk_seconds, 0);
  }
}

TEST_P(StoreBitsTest, ShardsInSeveralFolders) {
  const Rows want = Logits(*Open({}));
  const TempDir second;
  const TempDir third;
  int shard = 0;
  for (const auto& entry : fs::directory_iterator(dir_.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = entry.path().filename().string();
    if (++shard % 3 == 0) continue;
    const TempDir& to = shard % 3 == 1 ? second : third;
    fs::rename(entry.path(), to / name);
  }
  EXPECT_THROW(Open({}), Error);
  options_.also_dirs = {second.path(), third.path()};
  EXPECT_EQ(Logits(*Open({})), want);
  options_.also_dirs = {second.path()};
  EXPECT_THROW(Open({}), Error);
}

INSTANTIATE_TEST_SUITE_P(Spines, StoreBitsTest,
                         testing::Values(SpineFormat::kBf16, SpineFormat::kInt8),
                         [](const auto& test) {
                           return test.param == SpineFormat::kInt8 ? "int8" : "bf16";
                         });

}  // namespace
}  // namespace deltafin
