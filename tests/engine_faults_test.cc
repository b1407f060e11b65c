// Disks that fail, lie, stall or vanish in the middle of a generation: one clear error or the right
// tokens, never anything else, and the engine goes on when the disk does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "deltafin/convert.h"
#include "engine/engine_impl.h"
#include "engine_harness.h"
#include "io/testing_file_system.h"
#include "least_budget.h"
#include "shared_data.h"
#include "store/int8_spine.h"
#include "store/testing/temp_dir.h"
#include "test_rounds.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

const std::vector<TokenId> kPrompt = {5, 60, 17, 17, 120};
constexpr size_t kNewTokens = 3;
constexpr int64_t kForEver = int64_t{1} << 60;

class EngineFaultsTest : public testing::TestWithParam<SpineFormat> {
 protected:
  EngineFaultsTest() {
    for (const auto& entry : fs::directory_iterator(DataPath("official/model"))) {
      if (entry.is_regular_file()) fs::copy(entry.path(), dir_ / entry.path().filename().string());
    }
    if (GetParam() == SpineFormat::kInt8) ConvertSpineToInt8({dir_.path(), {}, 2, nullptr});
    options_.model_dir = dir_.path();
    options_.threads = 2;
    options_.context_tokens = 64;
    options_.spine = GetParam();
    // The least that it runs in: hardly anything is read only once.
    options_.pin_layers = 0;
    options_.ram_bytes = LeastRam(options_) + (1 << 16);
    want_ = Generate(*Open());
    EXPECT_EQ(want_.size(), kNewTokens);
  }

  std::unique_ptr<EngineImpl> Open() {
    EngineParts parts;
    parts.files = &files_;
    parts.keep_heat = false;
    return OpenAndFollow(options_, parts);
  }
  std::vector<TokenId> Generate(Engine& engine) {
    return GenerateGreedy(*engine.NewSession(), kPrompt, kNewTokens);
  }

  // Generates while `fault` is in force. Returns whether an error came; anything but that or the
  // right tokens is a failure of the test. Then the disk is well again, and so must the engine be.
  bool EndsWell(Engine& engine, const std::function<void()>& fault) {
    fault();
    bool failed = false;
    try {
      EXPECT_EQ(Generate(engine), want_);
    } catch (const Error& e) {
      failed = true;
      EXPECT_THAT(e.code(), testing::AnyOf(ErrorCode::kIo, ErrorCode::kCorrupt)) << e.what();
      EXPECT_THAT(e.what(), testing::HasSubstr(dir_.path()));  // says which file
    }
    files_.ClearFaults();
    return failed;
  }

  const TempDir dir_;
  FaultyFileSystem files_{RealFileSystem()};
  EngineOptions options_;
  std::vector<TokenId> want_;
};

// Every read of the opening and of a whole generation fails once.
TEST_P(EngineFaultsTest, EveryReadFailsOnce) {
  Open();  // may try more than once, until the budget is right
  int64_t begin = files_.num_reads();
  std::unique_ptr<EngineImpl> engine = Open();
  const int64_t opening = files_.num_reads() - begin;
  begin = files_.num_reads();
  Generate(*engine);
  const int64_t generating = files_.num_reads() - begin;
  ASSERT_GT(opening, 20);
  ASSERT_GT(generating, 100);
  int errors = 0;
  for (int64_t n = 0; n < opening; ++n) {
    files_.FailReads("", n);
    try {
      Open();
    } catch (const Error& e) {
      ++errors;
      EXPECT_THAT(e.what(), testing::HasSubstr(dir_.path()));
    }
    files_.ClearFaults();
  }
  EXPECT_GT(errors, opening / 3);  // it may have tried twice all the same
  errors = 0;
  // int8: the same reads of other files, and a sample is enough.
  const int64_t usual = GetParam() == SpineFormat::kInt8 ? 7 : 1;
  const int64_t step = std::max<int64_t>(1, usual * 100 / Rounds(100));
  for (int64_t n = 0; n < generating; n += step) {
    errors += EndsWell(*engine, [&] { files_.FailReads("", n); });
    if (HasFailure()) FAIL() << "read " << n;
    // What stays in RAM was read before: from time to time everything is new.
    if (n / step % 64 == 63) engine = Open();
  }
  // What was read ahead is read again when it is needed; what was waited for is an error.
  EXPECT_GT(errors, generating / step / 20);
  EXPECT_EQ(Generate(*engine), want_);
}

TEST_P(EngineFaultsTest, TheDiskIsGoneForGood) {
  int errors = 0;
  for (int64_t n = 0; n < 120; n += 7) {
    const std::unique_ptr<EngineImpl> engine = Open();
    errors += EndsWell(*engine, [&] { files_.FailReads("", n, kForEver); });
    EXPECT_EQ(Generate(*engine), want_);  // back again
  }
  EXPECT_EQ(errors, 18);  // a second try does not help while it is gone
}

TEST_P(EngineFaultsTest, ReadsThatComeInPartsOrLate) {
  const std::unique_ptr<EngineImpl> engine = Open();
  EXPECT_FALSE(EndsWell(*engine, [&] { files_.SplitReads("", 0, kForEver); }));
  for (int64_t n = 0; n < 200; n += 11) {
    EXPECT_FALSE(EndsWell(*engine, [&] { files_.SplitReads("", n, 3); }));
  }
  EXPECT_FALSE(EndsWell(*engine, [&] { files_.SetDelay(std::chrono::microseconds(500)); }));
}

// The file system says that a file ends where it did not before.
TEST_P(EngineFaultsTest, AFileIsCutOffWhileItIsUsed) {
  const std::unique_ptr<EngineImpl> engine = Open();
  Generate(*engine);
  int errors = 0;
  for (const auto& entry : fs::directory_iterator(dir_.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = entry.path().filename().string();
    const uint64_t half = entry.file_size() / 2;
    errors += EndsWell(*engine, [&] { files_.TruncateAfterOpen(name, half); });
    EXPECT_EQ(Generate(*engine), want_) << name;
  }
  EXPECT_GT(errors, 0);
}

TEST_P(EngineFaultsTest, ChangedBytesAreNoticedWhereThereIsAChecksum) {
  if (GetParam() != SpineFormat::kInt8) GTEST_SKIP() << "released weights have none";
  const auto opened = Checkpoint::Open(RealFileSystem(), dir_.path());
  const Checkpoint& checkpoint = *opened;
  const ModelConfig& config = checkpoint.config();
  for (int64_t layer = 0; layer <= config.num_layers; ++layer) {
    const std::string path = Int8LayerPath(dir_.path(), config, layer);
    const Int8LayerLayout layout = LayoutOfInt8Layer(config, layer);
    std::vector<uint64_t> places = {layout.scales_offset + 3};
    for (const Int8LayerLayout::Part& part : layout.parts) places.push_back(part.offset + 5);
    for (const uint64_t at : places) {
      const std::unique_ptr<EngineImpl> engine = Open();
      EXPECT_TRUE(EndsWell(*engine, [&] { files_.ChangeByte(path, at, 0x40); })) << path << at;
    }
  }
}

// With the queues that read by descriptor, on a real file: its end is cut off, or another file
// takes its name.
TEST_P(EngineFaultsTest, RealFilesThatChange) {
  for (const ReadEngine kind : {ReadEngine::kThreads, ReadEngine::kIoUring}) {
    for (const ReadMode mode : {ReadMode::kBuffered, ReadMode::kDirect}) {
      EngineParts parts;
      parts.keep_heat = false;
      parts.reads = {{0, {kind, mode, 4, uint64_t{1} << 16, nullptr}}};
      options_.ram_bytes = LeastRam(options_) + (1 << 16);  // of the process as it is now
      std::unique_ptr<EngineImpl> engine;
      try {
        engine = OpenAndFollow(options_, parts);
      } catch (const Error& e) {
        ASSERT_EQ(e.code(), ErrorCode::kUnsupported);  // no io_uring here
        continue;
      }
      EXPECT_EQ(Generate(*engine), want_);
      const auto opened = Checkpoint::Open(RealFileSystem(), dir_.path());
      const Checkpoint& checkpoint = *opened;
      const Extent expert = checkpoint.ExpertSpan(checkpoint.config().num_layers - 1, 0);
      const std::string shard = checkpoint.file(expert.shard).path();
      const std::string content = ReadWholeFile(RealFileSystem(), shard, 1 << 28);

      // The open file stays what it was.
      fs::rename(shard, shard + ".old");
      std::ofstream(shard, std::ios::binary) << std::string(content.size(), 'x');
      EXPECT_EQ(Generate(*engine), want_);
      fs::rename(shard + ".old", shard);

      // All of them: of one it may have all that it needs in RAM.
      std::map<std::string, std::string> contents;
      for (uint32_t i = 0; i < checkpoint.num_shards(); ++i) {
        const std::string& path = checkpoint.file(i).path();
        contents[path] = ReadWholeFile(RealFileSystem(), path, 1 << 28);
        fs::resize_file(path, 4096);
      }
      EXPECT_TRUE(EndsWell(*engine, [] {}));
      for (const auto& [path, text] : contents) {
        std::ofstream(path, std::ios::binary | std::ios::in) << text;  // the same file
      }
      EXPECT_EQ(Generate(*engine), want_);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Spines, EngineFaultsTest,
                         testing::Values(SpineFormat::kBf16, SpineFormat::kInt8),
                         [](const auto& test) {
                           return test.param == SpineFormat::kInt8 ? "int8" : "bf16";
                         });

}  // namespace
}  // namespace deltafin
