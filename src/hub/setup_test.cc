// Setup and its relatives against a stand-in for the hub.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "deltafin/hub.h"
#include "hub/disk_space.h"
#include "hub/progress_meter.h"
#include "hub/source_file.h"
#include "hub_double.h"
#include "hub_model.h"
#include "io/file.h"
#include "store/install_lock.h"
#include "store/shard_presence.h"
#include "test_rounds.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

class SetupTest : public ::testing::Test {
 protected:
  SetupOptions Options(SetupMode mode = SetupMode::kFull) {
    SetupOptions options;
    options.hub = QuickHubOptions(hub_.endpoint());
    options.dir = dir_ / "Kimi-K3";
    options.mode = mode;
    return options;
  }
  VerifyReport Verify(VerifyOptions::Depth depth, bool repair = false) {
    VerifyOptions options;
    options.hub = QuickHubOptions(hub_.endpoint());
    options.dir = dir_ / "Kimi-K3";
    options.depth = depth;
    options.repair = repair;
    return RunVerify(options);
  }
  std::string InDir(const std::string& name) { return dir_ / ("Kimi-K3/" + name); }
  void ExpectWhole() {
    EXPECT_EQ(DifferingShards(root_, dir_ / "Kimi-K3"), "");
    for (const char* name : {"config.json", "tiktoken.model", "model.safetensors.index.json"}) {
      EXPECT_EQ(ReadText(root_ + "/" + name), ReadText(InDir(name))) << name;
    }
  }
  uint64_t LocalBytes() {
    SetupOptions options = Options();
    options.dry_run = true;
    return RunSetup(options).local_bytes;
  }

  const std::string& root_ = SmallModelDir();
  HubDouble hub_{root_};
  const TempDir dir_;
};

TEST_F(SetupTest, BringsEveryByteAndVerifiesIt) {
  const SetupReport report = RunSetup(Options());
  ExpectWhole();
  EXPECT_EQ(report.complete_shards, report.num_shards);
  EXPECT_EQ(report.missing_bytes, 0u);
  EXPECT_EQ(report.revision.size(), 40u);
  EXPECT_EQ(hub_.num_leaks(), 0);
  EXPECT_TRUE(
      ShardPresence::OpenForReading(RealFileSystem(), InDir(ShardName(root_, 1)))->verified());
  const VerifyReport verified = Verify(VerifyOptions::Depth::kFull);
  EXPECT_TRUE(verified.problems.empty());
  EXPECT_EQ(verified.hashed_shards, report.num_shards);
  // A second run has nothing to do, and of a commit nothing to ask.
  const int64_t requests = hub_.num_requests();
  EXPECT_EQ(RunSetup(Options()).fetched_bytes, 0u);
  EXPECT_EQ(hub_.num_requests(), requests);
}

TEST_F(SetupTest, ADryRunChangesNothing) {
  SetupOptions options = Options(SetupMode::kAuto);
  options.dry_run = true;
  const SetupReport report = RunSetup(options);
  EXPECT_FALSE(fs::exists(options.dir));
  EXPECT_EQ(report.local_bytes, 0u);
  EXPECT_EQ(report.missing_bytes, report.total_bytes);
  EXPECT_EQ(report.wanted_bytes, report.total_bytes);
  EXPECT_EQ(report.mode, SetupMode::kFull);
  options.mode = SetupMode::kStream;
  const SetupReport stream = RunSetup(options);
  EXPECT_GT(stream.wanted_bytes, 0u);
  EXPECT_LT(stream.wanted_bytes, report.wanted_bytes);
}

TEST_F(SetupTest, StreamingBringsTheSpineAndFullTheRest) {
  const SetupReport stream = RunSetup(Options(SetupMode::kStream));
  EXPECT_LT(stream.local_bytes, stream.total_bytes);
  EXPECT_EQ(fs::file_size(InDir(ShardName(root_, 2))),
            fs::file_size(root_ + "/" + ShardName(root_, 2)));
  const SetupReport full = RunSetup(Options());
  EXPECT_EQ(full.fetched_bytes, stream.missing_bytes);
  ExpectWhole();
}

TEST_F(SetupTest, LayersChooseExperts) {
  SetupOptions options = Options();
  options.layers = {{2, 2}};
  const SetupReport report = RunSetup(options);
  EXPECT_GT(report.missing_bytes, 0u);
  EXPECT_EQ(ReadText(root_ + "/" + ShardName(root_, 3)), ReadText(InDir(ShardName(root_, 3))));
  EXPECT_NE(ReadText(root_ + "/" + ShardName(root_, 2)), ReadText(InDir(ShardName(root_, 2))));
}

TEST_F(SetupTest, WhatTheModelDoesNotHaveIsRefused) {
  SetupOptions options = Options();
  options.layers = {{1, 1}, {3, 4}};
  EXPECT_THROW(RunSetup(options), Error);
  options.layers = {{0, 3}};
  EXPECT_EQ(RunSetup(options).missing_bytes, 0u);
  options = Options(SetupMode::kStream);
  options.only_experts = true;
  for (const auto& absent : {std::pair(1, 16), std::pair(0, 1), std::pair(77, 1)}) {
    options.experts = {{1, 3}, absent};
    EXPECT_THROW(RunSetup(options), Error);
  }
}

TEST_F(SetupTest, ChosenExpertsComeAlone) {
  RunSetup(Options(SetupMode::kStream));
  SetupOptions options = Options(SetupMode::kStream);
  options.only_experts = true;
  options.experts = {{1, 3}, {2, 0}};
  const SetupReport warm = RunSetup(options);
  EXPECT_GT(warm.fetched_bytes, 0u);
  EXPECT_EQ(RunSetup(options).fetched_bytes, 0u);
  options.experts = {{1, 4}};
  EXPECT_EQ(RunSetup(options).fetched_bytes * 2, warm.fetched_bytes);
}

TEST_F(SetupTest, StopsAndGoesOnWithoutLosingABeginning) {
  hub_.set_bytes_per_second(400'000);
  SetupOptions options = Options();
  uint64_t total = 0;
  options.on_progress = [&](const SetupProgress& p) {
    total = p.total_bytes;
    return p.done_bytes < 200'000;
  };
  EXPECT_THROW(RunSetup(options), Error);
  const uint64_t kept = LocalBytes();
  EXPECT_GE(kept, 200'000u);
  hub_.set_bytes_per_second(0);
  options.on_progress = nullptr;
  const SetupReport rest = RunSetup(options);
  EXPECT_EQ(rest.fetched_bytes + kept, rest.total_bytes);
  ExpectWhole();
}

TEST_F(SetupTest, SeveralFoldersHoldTheShards) {
  SetupOptions options = Options(SetupMode::kStream);
  options.also = {dir_ / "second"};
  RunSetup(options);
  // A shard that was moved to the other folder, journal and all, is found there.
  const std::string name = ShardName(root_, 2);
  fs::create_directories(dir_ / "second/.deltafin/presence");
  fs::rename(InDir(name), dir_ / ("second/" + name));
  fs::rename(InDir(".deltafin/presence/" + name + ".map"),
             dir_ / ("second/.deltafin/presence/" + name + ".map"));
  options.mode = SetupMode::kFull;
  EXPECT_EQ(RunSetup(options).missing_bytes, 0u);
  EXPECT_FALSE(fs::exists(InDir(name)));
  EXPECT_EQ(ReadText(dir_ / ("second/" + name)), ReadText(root_ + "/" + name));
}

TEST_F(SetupTest, ShardsFromElsewhereAreAdoptedOrReplaced) {
  fs::create_directories(dir_ / "Kimi-K3");
  fs::copy(root_ + "/" + ShardName(root_, 1), InDir(ShardName(root_, 1)));
  fs::copy(root_ + "/" + ShardName(root_, 2), InDir(ShardName(root_, 2)));
  std::fstream(InDir(ShardName(root_, 2)), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(200000)
      .put('\x5a')
      .put('\x5b');
  const SetupReport report = RunSetup(Options());
  ExpectWhole();
  const uint64_t adopted = fs::file_size(InDir(ShardName(root_, 1)));
  EXPECT_LE(report.fetched_bytes, report.total_bytes - adopted);
  EXPECT_GE(report.fetched_bytes, fs::file_size(InDir(ShardName(root_, 2))));
}

TEST_F(SetupTest, RefusesToMixTwoSetsOfWeights) {
  RunSetup(Options(SetupMode::kStream));
  const TempDir other;
  fs::copy(root_, other / "model", fs::copy_options::recursive);
  std::fstream(other / ("model/" + ShardName(root_, 2)),
               std::ios::in | std::ios::out | std::ios::binary)
      .seekp(200000)
      .put('\x5a')
      .put('\x5b');
  for (const char* name : {"tiktoken.model", "model.safetensors.index.json"}) {
    std::ofstream(other / (std::string("model/") + name), std::ios::app) << "\n";
  }
  HubDouble other_hub(other / "model");
  SetupOptions options = Options();
  options.hub.endpoint = other_hub.endpoint();
  try {
    RunSetup(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
  }
  for (const char* name : {"tiktoken.model", "model.safetensors.index.json"}) {
    EXPECT_EQ(ReadText(InDir(name)), ReadText(root_ + "/" + name)) << name;
  }
}

TEST_F(SetupTest, ADiskThatIsTooSmallStreamsOrRefuses) {
  SetupOptions options = Options(SetupMode::kAuto);
  options.free_disk_bytes = [](const std::string&) { return uint64_t{3'000'000}; };
  options.dry_run = true;
  const SetupReport report = RunSetup(options);
  EXPECT_EQ(report.mode, SetupMode::kStream);
  EXPECT_EQ(report.lacking_bytes, report.missing_bytes + report.margin_bytes - 3'000'000);
  options.dry_run = false;
  options.mode = SetupMode::kFull;
  try {
    RunSetup(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNoSpace) << error.what();
  }
}

TEST_F(SetupTest, AFullDiskPausesAndLosesNothing) {
  hub_.set_bytes_per_second(400'000);
  SetupOptions options = Options();
  options.hub.jobs = 2;
  std::atomic<int> asked = 0;
  // Full from the third second look on, until somebody has freed some room.
  options.free_disk_bytes = [&](const std::string&) {
    const int number = asked++;
    return number > 2 && number < 8 ? uint64_t{0} : uint64_t{1'000'000'000};
  };
  bool paused = false;
  bool told = false;
  options.on_progress = [&](const SetupProgress& p) {
    if (p.phase == "disk full") hub_.set_bytes_per_second(0);
    paused |= p.phase == "disk full";
    told |= p.notice.find("Nothing is lost") != std::string::npos;
    return true;
  };
  const SetupReport report = RunSetup(options);
  EXPECT_TRUE(paused);
  EXPECT_TRUE(told);
  EXPECT_EQ(report.missing_bytes, 0u);
  ExpectWhole();
}

TEST_F(SetupTest, TwoAtOnceDoNotHarmEachOther) {
  fs::create_directories(dir_ / "Kimi-K3");
  const auto other = InstallLock::TryFill(dir_ / "Kimi-K3");
  try {
    RunSetup(Options());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("is filling this folder"), std::string::npos);
  }
}

TEST_F(SetupTest, OfflineUsesWhatIsKnown) {
  RunSetup(Options(SetupMode::kStream));
  const int64_t requests = hub_.num_requests();
  SetupOptions options = Options();
  options.hub.offline = true;
  options.dry_run = true;
  EXPECT_GT(RunSetup(options).missing_bytes, 0u);
  options.dry_run = false;
  EXPECT_THROW(RunSetup(options), Error);
  EXPECT_EQ(hub_.num_requests(), requests);
  EXPECT_EQ(MakeHubSource(options.hub, options.dir), nullptr);
}

TEST_F(SetupTest, AMissingFileIsNamed) {
  SetupOptions options = Options();
  options.hub.repo = "nobody/nothing";
  hub_.SetFaults([](const HubRequest&) { return HubFault::kNotFound; });
  EXPECT_THROW(RunSetup(options), Error);
  hub_.SetFaults(nullptr);
}

// ---- verify, repair, clean ----

TEST_F(SetupTest, VerifyFindsDamageAndRepairFetchesExactlyThat) {
  RunSetup(Options());
  const std::string path = InDir(ShardName(root_, 3));
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(150'000).put('\x7e');
  const bool changed = ReadText(path) != ReadText(root_ + "/" + ShardName(root_, 3));
  ASSERT_TRUE(changed);
  EXPECT_TRUE(Verify(VerifyOptions::Depth::kQuick).problems.empty());
  const VerifyReport found = Verify(VerifyOptions::Depth::kRanges);
  ASSERT_EQ(found.problems.size(), 1u);
  EXPECT_GT(found.bad_bytes, 0u);
  EXPECT_LT(found.bad_bytes, fs::file_size(path));
  const VerifyReport repaired = Verify(VerifyOptions::Depth::kRanges, /*repair=*/true);
  EXPECT_EQ(repaired.repaired_bytes, found.bad_bytes);
  ExpectWhole();
  EXPECT_TRUE(Verify(VerifyOptions::Depth::kFull).problems.empty());
}

TEST_F(SetupTest, VerifyFindsHolesAndCutFilesQuickly) {
  RunSetup(Options());
  const std::string path = InDir(ShardName(root_, 3));
  const uint64_t size = fs::file_size(path);
  fs::resize_file(path, size / 2);
  EXPECT_EQ(Verify(VerifyOptions::Depth::kQuick).problems.size(), 1u);
  fs::resize_file(path, size);
  EXPECT_FALSE(Verify(VerifyOptions::Depth::kQuick).problems.empty());
  fs::resize_file(path, size / 2);
  EXPECT_FALSE(Verify(VerifyOptions::Depth::kQuick, /*repair=*/true).problems.empty());
  ExpectWhole();
  EXPECT_TRUE(Verify(VerifyOptions::Depth::kFull).problems.empty());
}

TEST_F(SetupTest, MissingPartsAreNoDamage) {
  RunSetup(Options(SetupMode::kStream));
  EXPECT_TRUE(Verify(VerifyOptions::Depth::kFull).problems.empty());
  const uint64_t local = LocalBytes();
  EXPECT_EQ(Verify(VerifyOptions::Depth::kRanges, /*repair=*/true).repaired_bytes, 0u);
  EXPECT_EQ(LocalBytes(), local);
}

TEST_F(SetupTest, DamagedSmallFilesAreRepaired) {
  RunSetup(Options(SetupMode::kStream));
  std::ofstream(InDir("tiktoken.model")) << "short";
  EXPECT_EQ(Verify(VerifyOptions::Depth::kQuick).problems.size(), 1u);
  Verify(VerifyOptions::Depth::kQuick, /*repair=*/true);
  EXPECT_TRUE(Verify(VerifyOptions::Depth::kQuick).problems.empty());
}

// The shards are known without it.
TEST_F(SetupTest, ADamagedIndexIsRepaired) {
  RunSetup(Options(SetupMode::kStream));
  const std::string index = InDir("model.safetensors.index.json");
  const std::string text = ReadText(index);
  for (const std::string& bad : {std::string(), text.substr(0, text.size() / 2)}) {
    std::ofstream(index) << bad;
    if (bad.empty()) fs::remove(index);
    const VerifyReport report = Verify(VerifyOptions::Depth::kRanges);
    EXPECT_EQ(report.problems.size(), 1u);
    EXPECT_GT(report.checked_bytes, 0u);
    Verify(VerifyOptions::Depth::kRanges, /*repair=*/true);
    EXPECT_EQ(ReadText(index), text);
    EXPECT_TRUE(Verify(VerifyOptions::Depth::kRanges).problems.empty());
  }
}

// What changes the bytes on the way is found by the SHA-256 of the whole.
TEST_F(SetupTest, AChangeOnTheWayIsFound) {
  RunSetup(Options(SetupMode::kStream));
  const std::optional<SourceInfo> info = ReadSourceInfo(dir_ / "Kimi-K3");
  ASSERT_TRUE(info.has_value());
  const TempDir other;
  fs::copy(root_, other / "model", fs::copy_options::recursive);
  const std::string name = ShardName(root_, 2);
  std::string text = ReadText(root_ + "/" + name);
  for (size_t at = text.size() / 4; at < text.size(); at += 997) {
    text[at] = static_cast<char>(text[at] ^ 1);
  }
  std::ofstream(other / ("model/" + name), std::ios::binary | std::ios::trunc) << text;
  HubDouble changed(other / "model");
  SetupOptions options = Options();
  options.hub.revision = info->revision;  // known: its sizes and hashes are not asked again
  SourceInfo same = *info;
  same.endpoint = changed.endpoint();
  WriteSourceInfo(dir_ / "Kimi-K3", same);
  options.hub.endpoint = changed.endpoint();
  EXPECT_THROW(RunSetup(options), Error);
  WriteSourceInfo(dir_ / "Kimi-K3", *info);
  RunSetup(Options());
  ExpectWhole();
}

TEST_F(SetupTest, CleanFreesExpertsDownToASize) {
  RunSetup(Options());
  CleanOptions clean;
  clean.dir = dir_ / "Kimi-K3";
  clean.dry_run = true;
  const CleanReport all = RunClean(clean);
  EXPECT_EQ(all.freed_bytes, all.local_bytes);
  EXPECT_EQ(all.freed_experts, 3 * 16);
  clean.dry_run = false;
  clean.keep_bytes = all.local_bytes / 2;
  const CleanReport half = RunClean(clean);
  EXPECT_EQ(half.freed_experts, 3 * 8);
  const VerifyReport report = Verify(VerifyOptions::Depth::kRanges);
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(report.local_bytes, report.total_bytes - half.freed_bytes);
  EXPECT_EQ(RunClean(clean).freed_bytes, 0u);
  // In use by somebody: nothing is freed.
  {
    const auto use = InstallLock::Use(dir_ / "Kimi-K3");
    clean.keep_bytes = 0;
    EXPECT_THROW(RunClean(clean), Error);
  }
  EXPECT_EQ(RunSetup(Options()).fetched_bytes, half.freed_bytes);
  ExpectWhole();
}

// A mistyped path must not become a folder.
TEST_F(SetupTest, NothingIsMadeWhereThereIsNoModel) {
  CleanOptions clean;
  clean.dir = dir_ / "none";
  EXPECT_THROW(RunClean(clean), Error);
  fs::create_directory(InDir(""));
  clean.dir = dir_ / "Kimi-K3";
  EXPECT_THROW(RunClean(clean), Error);
  EXPECT_TRUE(fs::is_empty(clean.dir));
  fs::remove(clean.dir);
  EXPECT_THROW(Verify(VerifyOptions::Depth::kQuick, /*repair=*/true), Error);
  EXPECT_TRUE(fs::is_empty(dir_.path()));
}

// ---- random ----

// Any plan of faults, some of them with expiring links: what comes is whole, and no byte counts
// before it is there.
TEST_F(SetupTest, RandomFaultPlansEndWithEveryByte) {
  for (int trial = 0; trial < Rounds(20); ++trial) {
    std::mt19937 random(static_cast<unsigned>(trial));
    const double rate = std::uniform_real_distribution<double>(0.02, 0.4)(random);
    const int uses = trial % 3 == 0 ? 1 + static_cast<int>(random() % 10) : 0;
    hub_.set_uses_per_link(uses);
    hub_.set_serves_itself(trial % 5 == 4);
    auto faults = std::make_shared<std::mt19937>(random());
    hub_.SetFaults([faults, rate](const HubRequest& request) {
      if (std::uniform_real_distribution<double>(0, 1)(*faults) > rate) return HubFault::kNone;
      auto fault =
          static_cast<HubFault>(1 + (*faults)() % (static_cast<unsigned>(HubFault::kCount) - 1));
      // The hub's own word is final for these, and a stall takes its time.
      const bool is_final = fault == HubFault::kForbidden || fault == HubFault::kNotFound;
      if (is_final && request.stage != HubRequest::Stage::kLink) fault = HubFault::kBadGateway;
      if (fault == HubFault::kStall && (*faults)() % 8 != 0) fault = HubFault::kTruncated;
      return fault;
    });
    fs::remove_all(dir_ / "Kimi-K3");
    SetupOptions options = Options(trial % 2 == 0 ? SetupMode::kFull : SetupMode::kStream);
    options.hub.jobs = 1 + static_cast<int>(random() % 8);
    bool done = false;
    // Five wrong answers in a row end a run; the next one goes on.
    for (int run = 0; run < 50 && !done; ++run) {
      try {
        RunSetup(options);
        done = options.mode == SetupMode::kFull;
        options.mode = SetupMode::kFull;
      } catch (const Error& error) {
        ASSERT_TRUE(error.code() == ErrorCode::kNetwork || error.code() == ErrorCode::kNotFound)
            << error.what();
      }
    }
    ASSERT_TRUE(done) << trial;
    ASSERT_EQ(DifferingShards(root_, dir_ / "Kimi-K3"), "") << trial;
    EXPECT_EQ(hub_.num_leaks(), 0);
  }
  hub_.SetFaults(nullptr);
}

// ---- parts ----

TEST(DiskSpaceTest, FoldersOnOneDiskShareItsRoom) {
  const TempDir dir;
  fs::create_directories(dir / "a");
  fs::create_directories(dir / "b");
  const DiskSpace::FreeBytesOf free = [](const std::string&) { return uint64_t{1'000'000}; };
  const DiskSpace one({dir / "a"}, free);
  DiskSpace two({dir / "a", dir / "b"}, free);
  EXPECT_EQ(one.FreeBytes(1), 999'999u);
  EXPECT_EQ(two.FreeBytes(1), 999'999u);
  EXPECT_EQ(two.LackingBytes(0), 0u);
  EXPECT_EQ(two.Place(1000), dir / "a");
  two.Take(dir / "b", two.FreeBytes(0));
  EXPECT_EQ(two.LackingBytes(0), 1000u);
  EXPECT_EQ(two.LackingBytes(500), 1500u);
}

TEST(DiskSpaceTest, TheMarginFollowsTheModel) {
  EXPECT_EQ(DiskMargin(1'560'936'091'448), 10'000'000'000u);
  EXPECT_EQ(DiskMargin(100), 1u);
}

TEST(ProgressMeterTest, KnowsTheRateOfLate) {
  const auto start = ProgressMeter::Clock::now();
  ProgressMeter meter(start);
  EXPECT_EQ(meter.SecondsLeft(100), 0);
  for (int second = 1; second <= 100; ++second) {
    const int rate = second <= 50 ? 10 : 30;
    meter.Update(static_cast<uint64_t>(second <= 50 ? second * 10 : 500 + (second - 50) * rate),
                 start + std::chrono::seconds(second));
  }
  EXPECT_NEAR(meter.bytes_per_second(), 30, 0.01);
  EXPECT_NEAR(meter.SecondsLeft(3000), 100, 0.1);
  EXPECT_NEAR(meter.seconds(), 100, 0.01);
}

TEST(SourceFileTest, KeepsWhatTheHubSaid) {
  const TempDir dir;
  EXPECT_FALSE(ReadSourceInfo(dir.path()).has_value());
  SourceInfo info{"https://hub", "owner/name", "main", {{"a", 5, std::string(64, '0'), ""}}};
  WriteSourceInfo(dir.path(), info);
  const auto read = ReadSourceInfo(dir.path());
  EXPECT_EQ(read->endpoint, info.endpoint);
  EXPECT_EQ(read->Find("a")->bytes, 5u);
  EXPECT_EQ(read->Find("b"), nullptr);
  std::ofstream(dir / ".deltafin/source.json") << "{\"version\": 1}";
  EXPECT_THROW((void)ReadSourceInfo(dir.path()), Error);
}

}  // namespace
}  // namespace deltafin
