// Setup, verify and clean in several folders, and in folders that are not from setup.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "deltafin/hub.h"
#include "hub_double.h"
#include "hub_model.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "store/shard_presence.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

class FoldersTest : public ::testing::Test {
 protected:
  SetupOptions Options(const std::string& dir, SetupMode mode = SetupMode::kFull) {
    SetupOptions options;
    options.hub = QuickHubOptions(hub_.endpoint());
    options.dir = dir;
    options.mode = mode;
    return options;
  }
  VerifyOptions VerifyOf(const std::string& dir, bool repair = false) {
    VerifyOptions options;
    options.hub = QuickHubOptions(hub_.endpoint());
    options.dir = dir;
    options.repair = repair;
    return options;
  }

  const std::string& root_ = SmallModelDir();
  HubDouble hub_{root_};
  const TempDir dir_;
  const std::string one_ = dir_ / "one";
  const std::string two_ = dir_ / "two";
  const std::string shard_ = ShardName(root_, 2);
};

TEST_F(FoldersTest, ACompleteShardOfAnotherFolderIsNotFetchedAgain) {
  RunSetup(Options(two_));
  RunSetup(Options(one_, SetupMode::kStream));
  SetupOptions options = Options(one_);
  options.also = {two_};
  const SetupReport report = RunSetup(options);
  EXPECT_EQ(report.fetched_bytes, 0u);
  EXPECT_EQ(report.missing_bytes, 0u);
}

TEST_F(FoldersTest, EachCountsOnceAndMustBeThere) {
  SetupOptions options = Options(one_);
  options.also = {one_ + "/", one_ + "/../one"};
  RunSetup(options);
  VerifyOptions verify = VerifyOf(one_, /*repair=*/true);
  verify.also = options.also;
  EXPECT_TRUE(RunVerify(verify).problems.empty());
  CleanOptions clean;
  clean.dir = one_;
  clean.also = options.also;
  EXPECT_GT(RunClean(clean).freed_bytes, 0u);
  verify.also = clean.also = {dir_ / "none"};
  verify.repair = false;
  clean.dry_run = true;
  EXPECT_THROW(RunVerify(verify), Error);
  EXPECT_THROW(RunClean(clean), Error);
}

// A full disk of which nothing is wanted any more neither stops setup nor keeps it waiting.
TEST_F(FoldersTest, AFullDiskThatIsDoneDoesNotHoldUpTheOthers) {
  RunSetup(Options(one_));
  RunSetup(Options(two_, SetupMode::kStream));
  fs::remove(one_ + "/" + shard_);
  fs::remove(one_ + "/.deltafin/presence/" + shard_ + ".map");
  hub_.set_bytes_per_second(400'000);
  SetupOptions options = Options(one_);
  options.hub.jobs = 2;
  options.also = {two_};
  int asked_one = 0;
  int asked_two = 0;
  // Twice before it begins; then the first is full, and the second for a moment.
  options.free_disk_bytes = [&](const std::string& folder) {
    const bool full = folder == one_ ? asked_one++ >= 2 : asked_two++ == 0;
    return full ? uint64_t{0} : uint64_t{1'000'000'000};
  };
  int pauses = 0;
  options.on_progress = [&](const SetupProgress& p) {
    if (p.phase == "disk full") hub_.set_bytes_per_second(0);
    return p.phase != "disk full" || ++pauses < 20;
  };
  EXPECT_EQ(RunSetup(options).missing_bytes, 0u);
  EXPECT_GT(pauses, 0);
  EXPECT_LT(pauses, 20);
}

TEST_F(FoldersTest, WhatCannotBeRepairedIsNotSaidToBe) {
  fs::copy(root_, one_);  // without .deltafin
  fs::remove(one_ + "/" + shard_);
  const VerifyReport report = RunVerify(VerifyOf(one_, /*repair=*/true));
  EXPECT_EQ(report.problems.size(), 1u);
  EXPECT_FALSE(report.repaired);
}

TEST_F(FoldersTest, AShardThatIsTooShortForAHeaderIsDamaged) {
  fs::copy(root_, one_);
  for (const uint64_t bytes : {0, 7}) {
    fs::resize_file(one_ + "/" + shard_, bytes);
    EXPECT_EQ(RunVerify(VerifyOf(one_)).problems.size(), 1u) << bytes;
  }
}

// Its other bytes are as doubtful as the header, and a repair must not leave them out.
TEST_F(FoldersTest, AShardWithoutAJournalIsRepairedWhole) {
  RunSetup(Options(one_));
  fs::remove(one_ + "/.deltafin/presence/" + shard_ + ".map");
  std::fstream(one_ + "/" + shard_, std::ios::in | std::ios::out | std::ios::binary).put('\x7f');
  EXPECT_TRUE(RunVerify(VerifyOf(one_, /*repair=*/true)).repaired);
  const VerifyReport report = RunVerify(VerifyOf(one_));
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(report.local_bytes, report.total_bytes);
  EXPECT_EQ(DifferingShards(root_, one_), "");
}

// Killed between the journal and the holes.
TEST_F(FoldersTest, CleanFreesWhatAnEarlierRunHasLeft) {
  RunSetup(Options(one_));
  const std::string path = one_ + "/" + shard_;
  const uint64_t bytes = fs::file_size(path);
  {
    const auto shard = ShardPresence::OpenForWriting(RealFileSystem(), path, bytes, "");
    (void)shard->Forget({bytes / 2, bytes / 2});
  }
  const uint64_t before = DiskBytesOf(path);
  CleanOptions clean;
  clean.dir = one_;
  clean.keep_bytes = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(RunClean(clean).freed_bytes, 0u);
  EXPECT_LT(DiskBytesOf(path), before);
  RunSetup(Options(one_));
  EXPECT_EQ(DifferingShards(root_, one_), "");
}

}  // namespace
}  // namespace deltafin
