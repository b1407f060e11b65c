// Models of which most is still on the hub: the same bits as from a full install, whatever the hub
// does.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <random>

#include "deltafin/convert.h"
#include "engine_harness.h"
#include "hub_double.h"
#include "hub_model.h"
#include "store/checkpoint.h"
#include "store/layout.h"
#include "store/model_files.h"
#include "store/shard_presence.h"
#include "test_rounds.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

class EngineStreamTest : public ::testing::Test {
 protected:
  using Logits = std::vector<std::vector<float>>;

  void Install(SetupMode mode) {
    SetupOptions setup;
    setup.hub = QuickHubOptions(hub_.endpoint());
    setup.dir = model_;
    setup.mode = mode;
    RunSetup(setup);
  }
  // Files and headers, but nothing of the weights.
  void InstallNothing() {
    SetupOptions setup;
    setup.hub = QuickHubOptions(hub_.endpoint());
    setup.dir = model_;
    setup.mode = SetupMode::kStream;
    setup.only_experts = true;
    RunSetup(setup);
  }
  std::unique_ptr<Engine> Open(bool with_source = true) {
    EngineOptions options;
    options.model_dir = model_;
    options.threads = 2;
    options.spine = SpineFormat::kBf16;
    if (with_source) {
      HubOptions quick = QuickHubOptions(hub_.endpoint());
      options.source = MakeHubSource(quick, model_);
      EXPECT_NE(options.source, nullptr);
    }
    return Engine::Open(options);
  }
  static Logits Compute(Engine& engine, int64_t chunk = 1) {
    const auto session = engine.NewSession();
    const std::vector<TokenId> tokens = {5, 100, 7, 300, 45, 45, 2, 17};
    return AppendAll(*session, tokens, chunk);
  }
  Logits FullLogits() { return Compute(*OpenEngine(root_, 2)); }
  uint64_t Local() {
    SetupOptions setup;
    setup.hub = QuickHubOptions(hub_.endpoint());
    setup.dir = model_;
    setup.mode = SetupMode::kFull;
    setup.dry_run = true;
    return RunSetup(setup).local_bytes;
  }

  const std::string& root_ = SmallModelDir();
  HubDouble hub_{root_};
  const TempDir dir_;
  const std::string model_ = dir_ / "Kimi-K3";
};

TEST_F(EngineStreamTest, FetchesWhatIsMissingAndKeepsIt) {
  Install(SetupMode::kStream);
  const uint64_t before = Local();
  const Logits full = FullLogits();
  uint64_t fetched = 0;
  {
    const auto engine = Open();
    EXPECT_EQ(Compute(*engine), full);
    fetched = engine->counters().network_bytes;
    bool reminded = false;
    for (const std::string& line : engine->Describe()) {
      reminded |= line.starts_with("streaming: ") &&
                  line.find("deltafin setup --full --dir " + model_) != std::string::npos;
    }
    EXPECT_TRUE(reminded);
  }
  const uint64_t after = Local();
  EXPECT_GT(after, before);
  EXPECT_EQ(after - before, fetched);
  // What was fetched once is here now: no source is needed.
  const int64_t requests = hub_.num_link_requests();
  {
    const auto again = Open(/*with_source=*/false);
    EXPECT_EQ(Compute(*again), full);
    EXPECT_EQ(again->counters().network_bytes, 0u);
  }
  EXPECT_EQ(hub_.num_link_requests(), requests);
  // Setup brings the rest, and the result is the hub's byte for byte.
  Install(SetupMode::kFull);
  EXPECT_EQ(DifferingShards(root_, model_), "");
  for (const std::string& line : Open(false)->Describe()) {
    EXPECT_FALSE(line.starts_with("streaming"));
  }
}

TEST_F(EngineStreamTest, TheSpineStreamsToo) {
  InstallNothing();
  EXPECT_EQ(Compute(*Open(), 8), FullLogits());
}

TEST_F(EngineStreamTest, WithoutASourceAHoleIsAnErrorThatNamesTheCommand) {
  Install(SetupMode::kStream);
  const auto engine = Open(/*with_source=*/false);
  try {
    Compute(*engine);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("deltafin setup --dir " + model_), std::string::npos)
        << error.what();
  }
}

TEST_F(EngineStreamTest, ConvertNeverReadsHoles) {
  InstallNothing();
  ConvertOptions options;
  options.model_dir = model_;
  options.threads = 1;
  EXPECT_THROW(ConvertSpineToInt8(options), Error);
}

// Setup was stopped in the middle of a layer.
TEST_F(EngineStreamTest, ConvertNeverReadsAHoleAmongThingsThatAreThere) {
  Install(SetupMode::kStream);
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), root_);
  const LayerLayout layout = LayoutOfLayer(checkpoint->config(), 1);
  const Extent hole = checkpoint->Find(layout.matrices.back().tensor);
  const ReadableFile& whole = checkpoint->file(hole.shard);
  {
    const auto shard = ShardPresence::OpenForWriting(
        RealFileSystem(), model_ + "/" + fs::path(whole.path()).filename().string(), whole.size(),
        "");
    const uint64_t hole_end = hole.offset + hole.bytes;
    std::vector<PresentRange> rest;
    for (const PresentRange& gone : shard->Forget({hole.offset, hole.bytes})) {
      rest.push_back({gone.offset, std::max(gone.offset, hole.offset) - gone.offset, 0});
      rest.push_back({hole_end, std::max(gone.end(), hole_end) - hole_end, 0});
    }
    std::erase_if(rest, [](const PresentRange& range) { return range.bytes == 0; });
    ASSERT_FALSE(rest.empty());
    for (const PresentRange& range : rest) EXPECT_TRUE(shard->MarkReadable(range));
    shard->Record(rest);
    shard->file().PunchHole(hole.offset, hole.bytes);
  }
  ConvertOptions options;
  options.model_dir = model_;
  options.threads = 1;
  EXPECT_THROW(ConvertSpineToInt8(options), Error);
  Install(SetupMode::kStream);
  EXPECT_NO_THROW(ConvertSpineToInt8(options));
}

TEST_F(EngineStreamTest, TwoEnginesShareAFolder) {
  Install(SetupMode::kStream);
  const Logits full = FullLogits();
  const auto one = Open();
  const auto two = Open();  // finds the folder being filled: it fetches and does not keep
  EXPECT_EQ(Compute(*one), full);
  const int64_t requests = hub_.num_link_requests();
  EXPECT_EQ(Compute(*two), full);
  // What the first has kept, the second reads.
  EXPECT_LT(hub_.num_link_requests() - requests, requests);
}

TEST_F(EngineStreamTest, AHubThatIsGoneEndsTheStepAndNotTheEngine) {
  Install(SetupMode::kStream);
  EngineOptions options;
  options.model_dir = model_;
  options.threads = 2;
  HubOptions quick = QuickHubOptions(hub_.endpoint());
  quick.patience_seconds = 0.2;
  options.source = MakeHubSource(quick, model_);
  options.spine = SpineFormat::kBf16;
  const auto engine = Engine::Open(options);
  hub_.SetFaults([](const HubRequest&) { return HubFault::kServerError; });
  EXPECT_THROW(Compute(*engine), Error);
  hub_.SetFaults(nullptr);
  EXPECT_EQ(Compute(*engine), FullLogits());
}

TEST_F(EngineStreamTest, WhoDoesNotWantToWaitForTheHubNeedNot) {
  Install(SetupMode::kStream);
  std::atomic<bool> stop = false;
  EngineOptions options;
  options.model_dir = model_;
  options.threads = 2;
  HubOptions patient = QuickHubOptions(hub_.endpoint());
  patient.retry_seconds = patient.max_retry_seconds = 600;
  patient.patience_seconds = 900;
  patient.cancelled = [&] { return stop.load(); };
  options.source = MakeHubSource(patient, model_);
  options.spine = SpineFormat::kBf16;
  const auto engine = Engine::Open(options);
  hub_.SetFaults([](const HubRequest&) { return HubFault::kServerError; });
  auto waiting = std::async(std::launch::async, [&] {
    GenerateOptions generate;
    generate.cancelled = [&] { return stop.load(); };
    const auto session = engine->NewSession();
    return session->Generate(std::vector<TokenId>{5, 100, 7}, generate).finish_reason;
  });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  stop = true;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(waiting.get(), FinishReason::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  stop = false;
  hub_.SetFaults(nullptr);
  EXPECT_EQ(Compute(*engine), FullLogits());
}

TEST_F(EngineStreamTest, AnEngineEndsAtOnceWhenTheHubIsSlow) {
  InstallNothing();
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), root_);
  const auto shard_of = [&](int64_t layer) {
    const LayerLayout layout = LayoutOfLayer(checkpoint->config(), layer);
    const Extent extent = checkpoint->Find(layout.matrices.front().tensor);
    return fs::path(checkpoint->file(extent.shard).path()).filename().string();
  };
  const std::string first = shard_of(0);
  ASSERT_NE(shard_of(3), first);
  auto engine = Open();
  auto session = engine->NewSession();
  const std::vector<TokenId> tokens = {5, 100, 7};
  // The first layer fails, the others are on their way for minutes.
  EXPECT_THROW(session->Append(tokens, 0, nullptr,
                               [&] {
                                 hub_.set_bytes_per_second(10'000);
                                 hub_.SetFaults([&](const HubRequest& request) {
                                   return request.file == first ? HubFault::kNotFound
                                                                : HubFault::kNone;
                                 });
                                 return false;
                               }),
               Error);
  session.reset();
  const auto start = std::chrono::steady_clock::now();
  engine.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  hub_.SetFaults(nullptr);
}

TEST_F(EngineStreamTest, RandomFaultsChangeNoBit) {
  const Logits full = FullLogits();
  for (int trial = 0; trial < Rounds(20); ++trial) {
    std::mt19937 random(static_cast<unsigned>(trial));
    fs::remove_all(model_);
    hub_.SetFaults(nullptr);
    if (trial % 4 == 3) {
      InstallNothing();
    } else {
      Install(SetupMode::kStream);
    }
    hub_.set_uses_per_link(trial % 3 == 0 ? 4 : 0);
    auto faults = std::make_shared<std::mt19937>(random());
    hub_.SetFaults([faults](const HubRequest& request) {
      if ((*faults)() % 6 != 0) return HubFault::kNone;
      const HubFault kinds[] = {HubFault::kBusy,      HubFault::kServerError, HubFault::kTruncated,
                                HubFault::kEarlyEnd,  HubFault::kSlow,        HubFault::kForbidden,
                                HubFault::kWholeFile, HubFault::kOtherRange};
      const HubFault fault = kinds[(*faults)() % std::size(kinds)];
      const bool is_final = fault == HubFault::kForbidden;
      return is_final && request.stage != HubRequest::Stage::kLink ? HubFault::kBadGateway : fault;
    });
    ASSERT_EQ(Compute(*Open(), trial % 2 == 0 ? 1 : 4), full) << trial;
  }
  hub_.SetFaults(nullptr);
}

}  // namespace
}  // namespace deltafin
