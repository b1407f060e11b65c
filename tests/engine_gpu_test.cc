// The engine with a GPU (the tests' software driver) against the engine without: the same bits
// wherever the weights are, from nothing on the GPU to everything, and when the GPU is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "deltafin/convert.h"
#include "deltafin/devices.h"
#include "device/vulkan/vulkan_test_util.h"
#include "engine/engine_impl.h"
#include "engine_harness.h"
#include "reference/odd_checkpoints.h"
#include "reference/oracle_data.h"
#include "shared_data.h"

namespace deltafin {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

EngineOptions Options(const std::string& dir, uint64_t gpu_bytes, uint64_t ram_bytes = 0) {
  EngineOptions options;
  options.model_dir = dir;
  options.threads = 2;
  options.context_tokens = 256;
  options.ram_bytes = ram_bytes;
  options.spine = SpineFormat::kBf16;
  options.gpu_bytes = gpu_bytes;
  if (gpu_bytes > 0) {
    options.device = DeviceChoice::kGpu;
    const auto instance = VulkanInstance::Create();
    options.gpu_number = static_cast<int>(TestGpuNumber(*instance));
  }
  return options;
}

std::unique_ptr<EngineImpl> Open(const EngineOptions& options) {
  EngineParts parts;
  parts.keep_heat = false;
  return std::make_unique<EngineImpl>(options, parts);
}

std::vector<TokenId> SomeTokens(size_t count) {
  auto ids = reference::LoadNanoPrompts().at(5).AllIds();
  ids.resize(std::min(ids.size(), count));
  return {ids.begin(), ids.end()};
}

TEST(EngineGpu, PlacementNeverShows) {
  const auto tokens = SomeTokens(24);
  const auto want = AppendAll(*Open(Options(NanoDir(), 0))->NewSession(), tokens, 0);
  // One byte holds nothing, 3 MiB a part of the spine, 64 MiB the spine and some experts.
  bool some = false;
  bool all = false;
  for (const uint64_t gpu_bytes : {uint64_t{1}, 3 * kMiB, 64 * kMiB, 512 * kMiB}) {
    const auto engine = Open(Options(NanoDir(), gpu_bytes));
    ASSERT_NE(engine->gpu_device(), nullptr);
    // All in one pass, which is longer than states stay on the GPU for, and shorter ones.
    for (const auto& [chunk, count] : {std::pair<int64_t, size_t>{0, 24}, {7, 9}, {1, 5}}) {
      SCOPED_TRACE(testing::Message() << gpu_bytes << " bytes, chunk " << chunk);
      const auto some_tokens = std::span(tokens).first(count);
      const auto got = AppendAll(*engine->NewSession(), some_tokens, chunk);
      ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
    }
    const uint64_t held = engine->gpu_device()->held_bytes();
    EXPECT_LE(held, gpu_bytes);
    EXPECT_EQ(held > 0, gpu_bytes > 1);
    EXPECT_FALSE(engine->gpu_device()->is_lost());
    some |= held > 0 && engine->memory_plan().device_spine_bytes < held + kMiB / 4;
    all |= held > engine->memory_plan().device_spine_bytes + kMiB;
  }
  EXPECT_TRUE(some);
  EXPECT_TRUE(all) << "no expert was held";
}

TEST(EngineGpu, WhatTheGpuHoldsIsReadOnce) {
  const auto tokens = SomeTokens(3);
  const auto engine = Open(Options(NanoDir(), 256 * kMiB));
  const auto session = engine->NewSession();
  AppendAll(*session, std::span(tokens).first(1), 0);
  const EngineCounters first = engine->counters();
  AppendAll(*session, std::span(tokens).subspan(1), 1);
  const EngineCounters later = engine->counters() - first;
  EXPECT_GT(first.spine_bytes, kMiB);
  EXPECT_EQ(later.head_bytes, 0u);
  EXPECT_LE(later.spine_bytes, first.spine_bytes / 50);  // what was read ahead
  EXPECT_GT(engine->memory_plan().device_spine_bytes, kMiB);
  EXPECT_LT(engine->memory_plan().spine_bytes, kMiB);
  EXPECT_EQ(engine->info().streamed_spine_bytes, 0u);
}

TEST(EngineGpu, GreedyIdsAreTheOracles) {
  const auto prompts = reference::LoadNanoPrompts();
  const auto cpu = Open(Options(NanoDir(), 0));
  const auto gpu = Open(Options(NanoDir(), 256 * kMiB));
  for (size_t i = 0; i < 2; ++i) {
    const size_t count = std::min<size_t>(prompts[i].greedy_ids.size(), 8);
    const std::vector<TokenId> want(prompts[i].greedy_ids.begin(),
                                    prompts[i].greedy_ids.begin() + static_cast<long>(count));
    const auto ids = GenerateGreedy(*gpu->NewSession(), prompts[i].ids, count);
    EXPECT_EQ(ids, GenerateGreedy(*cpu->NewSession(), prompts[i].ids, count));
    EXPECT_TRUE(i > 0 || ids == want);
  }
}

TEST(EngineGpu, AnInt8SpineToo) {
  reference::TemporaryFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(NanoDir())) {
    if (!entry.is_regular_file()) continue;
    std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                    folder.path() + "/" + entry.path().filename().string());
  }
  ConvertSpineToInt8({folder.path(), {}, 2, nullptr});
  const auto tokens = SomeTokens(6);
  EngineOptions options = Options(folder.path(), 0);
  options.spine = SpineFormat::kInt8;
  const auto want = AppendAll(*Open(options)->NewSession(), tokens, 0);
  for (const uint64_t gpu_bytes : {2 * kMiB, 256 * kMiB}) {
    options = Options(folder.path(), gpu_bytes);
    options.spine = SpineFormat::kInt8;
    const auto engine = Open(options);
    for (const int64_t chunk : {0, 4, 1}) {  // the second pass is the last that reads
      ASSERT_EQ(want, AppendAll(*engine->NewSession(), tokens, chunk));
    }
    EXPECT_GT(engine->gpu_device()->held_bytes(), kMiB);
  }
}

// In the middle of an answer, after any number of submissions.
TEST(EngineGpu, ALostGpuCostsNoBit) {
  const auto tokens = SomeTokens(10);
  const auto want = AppendAll(*Open(Options(NanoDir(), 0))->NewSession(), tokens, 0);
  for (const int64_t submits : {0, 1, 5, 20, 60}) {
    EngineOptions options = Options(NanoDir(), 256 * kMiB);
    std::mutex mutex;
    std::vector<std::string> notices;
    options.on_notice = [&](const std::string& notice) {
      const std::lock_guard lock(mutex);
      notices.push_back(notice);
    };
    const auto engine = Open(options);
    const auto session = engine->NewSession();
    auto got = AppendAll(*session, std::span(tokens).first(4), 0);
    GpuFaults faults;
    faults.submits_until_lost = submits;
    engine->gpu()->SetFaults(faults);
    const auto rest = AppendAll(*session, std::span(tokens).subspan(4), 2);
    got.insert(got.end(), rest.begin(), rest.end());
    ASSERT_EQ(got, want) << submits;
    EXPECT_TRUE(engine->gpu_device()->is_lost()) << submits;
    EXPECT_EQ(AppendAll(*engine->NewSession(), tokens, 0), want);  // and the next answer
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_THAT(notices[0], testing::HasSubstr("lost"));
  }
}

// Wherever it ends: in what is staged, shadows, scratch or weights.
TEST(EngineGpu, LessMemoryThanPlannedCostsNoBit) {
  const auto tokens = SomeTokens(24);
  const auto want = AppendAll(*Open(Options(NanoDir(), 0))->NewSession(), tokens, 0);
  for (const uint64_t most : {uint64_t{1}, 20 * kMiB, 40 * kMiB, 70 * kMiB, 100 * kMiB, 130 * kMiB,
                              180 * kMiB, 240 * kMiB}) {
    const auto engine = Open(Options(NanoDir(), 64 * kMiB));
    GpuFaults faults;
    faults.most_bytes = most;
    engine->gpu()->SetFaults(faults);
    for (const int64_t chunk : {20, 3}) {
      ASSERT_EQ(AppendAll(*engine->NewSession(), tokens, chunk), want) << most << ", " << chunk;
    }
  }
}

// Where the GPU shares the machine's memory it computes experts that it does not hold where they
// were read to.
TEST(EngineGpu, ExpertsInSlotsAreNotCopied) {
  const EngineOptions options = Options(NanoDir(), 1);
  if (!ListGpus().at(static_cast<size_t>(options.gpu_number)).shares_ram) {
    GTEST_SKIP() << "this GPU has memory of its own";
  }
  const auto tokens = SomeTokens(6);
  const auto want = AppendAll(*Open(Options(NanoDir(), 0))->NewSession(), tokens, 0);
  const auto engine = Open(options);
  const auto got = AppendAll(*engine->NewSession(), tokens, 2);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
  const ModelConfig& c = engine->config();
  const auto expert_bytes =
      static_cast<uint64_t>(3 * c.moe_intermediate_size * c.latent_size / 32 * 17);
  EXPECT_EQ(engine->gpu_device()->held_bytes(), 0u);
  EXPECT_EQ(engine->gpu_device()->in_place_bytes(),
            static_cast<uint64_t>(engine->expert_counters().requested) * expert_bytes);
}

TEST(EngineGpu, ALayerWaitsOnce) {
  const auto tokens = SomeTokens(5);
  EngineOptions options = Options(NanoDir(), 512 * kMiB);
  options.prefetch = Prefetch::kOff;  // guesses are waited for too
  const auto engine = Open(options);
  // The GPU gets experts that are used again.
  for (int run = 0; run < 2; ++run) AppendAll(*engine->NewSession(), tokens, 0);
  const auto session = engine->NewSession();
  AppendAll(*session, std::span(tokens).first(4), 0);
  const int64_t before = engine->gpu_device()->num_waits();
  AppendAll(*session, std::span(tokens).last(1), 0);
  // For the router's picks; for the logits; and when the next pass began.
  EXPECT_LE(engine->gpu_device()->num_waits() - before, engine->config().num_layers + 2);
}

// States stay on the GPU, of two sequences in turn; saving and restoring them does not show, and
// neither does a GPU that is lost with them.
TEST(EngineGpu, StatesAreSavedAndRestored) {
  const auto tokens = SomeTokens(16);
  const auto all = std::span(tokens);
  const auto want = AppendAll(*Open(Options(NanoDir(), 0))->NewSession(), tokens, 0);
  for (const int64_t submits : {-1, 9}) {
    EngineOptions options = Options(NanoDir(), 256 * kMiB);
    options.parallel_sessions = 2;
    const auto engine = Open(options);
    const auto one = engine->NewSession();
    const auto other = engine->NewSession();
    AppendAll(*one, all.first(5), 1);
    const auto saved = one->Save();
    GpuFaults faults;
    faults.submits_until_lost = submits;
    engine->gpu()->SetFaults(faults);
    auto got = AppendAll(*one, all.subspan(5, 4), 1);
    AppendAll(*other, all.first(7), 3);
    other->Restore(*saved);
    const auto again = AppendAll(*other, all.subspan(5), 2);
    const auto rest = AppendAll(*one, all.subspan(9), 1);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + 5, want.end())) << submits;
    EXPECT_EQ(again, got) << submits;
    EXPECT_EQ(engine->gpu_device()->is_lost(), submits >= 0);
  }
}

TEST(EngineGpu, SaysWhatIsWhere) {
  const auto engine = Open(Options(NanoDir(), 4 * kMiB));
  std::string said;
  for (const std::string& line : engine->Describe()) said += line + "\n";
  EXPECT_THAT(said, testing::HasSubstr("on the GPU"));
  EXPECT_THAT(said, testing::HasSubstr("of its memory for weights"));
  int planned = 0;
  for (const PlanLine& line : engine->plan()) {
    planned += line.what == "on the GPU: spine" ||
               (line.what == "on the GPU: working memory" && line.bytes > kMiB);
  }
  EXPECT_EQ(planned, 2);
}

TEST(EngineGpu, AGpuThatIsNotThereIsAnErrorUnlessItIsUpToTheEngine) {
  EngineOptions options = Options(NanoDir(), kMiB);
  options.gpu_number = 99;
  try {
    Open(options);
    FAIL() << "there are a hundred GPUs";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("99"));
  }
  options = Options(NanoDir(), 0);
  options.device = DeviceChoice::kAuto;
  const auto engine = Open(options);
  EXPECT_TRUE(engine->gpu() == nullptr || !engine->gpu()->info().shares_ram);
}

TEST(EngineGpu, DevicesAreListed) {
  std::string note;
  const std::vector<ComputeDevice> devices = ListDevices(&note);
  EXPECT_EQ(note, "");
  ASSERT_GE(devices.size(), 2u);
  EXPECT_EQ(devices[0].flag, "cpu");
  EXPECT_EQ(devices[1].flag, "gpu:0");
  EXPECT_NE(devices[1].verdict, "");
}

}  // namespace
}  // namespace deltafin
