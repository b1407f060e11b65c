// Presence: the map against a bitmap, the journal against every way of tearing it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/captured_error.h"
#include "deltafin/error.h"
#include "io/hash.h"
#include "io/memory_limits.h"
#include "io/testing_file_system.h"
#include "store/install_lock.h"
#include "store/model_files.h"
#include "store/presence_file.h"
#include "store/presence_map.h"
#include "store/range_source.h"
#include "store/range_writer.h"
#include "store/shard_presence.h"
#include "store/testing/simple_read_queue.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

const std::string kSha(64, 'a');

void Overwrite(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::string Read(const std::string& path) {
  return ReadWholeFile(RealFileSystem(), path, uint64_t{1} << 30);
}

TEST(PresenceMapTest, AgreesWithABitmap) {
  constexpr uint64_t kBytes = 200;
  std::mt19937 random(3);
  const auto below = [&](uint64_t limit) { return static_cast<uint64_t>(random() % limit); };
  for (int trial = 0; trial < 200; ++trial) {
    PresenceMap map(kBytes);
    std::vector<uint64_t> owner(kBytes, 0);  // number of the range, 0: none
    std::vector<ByteRange> added = {{}};
    for (int step = 0; step < 60; ++step) {
      const uint64_t offset = below(kBytes + 2);
      const ByteRange range{offset, below(30)};
      if (random() % 4 != 0) {
        const bool fits = range.bytes > 0 && range.end() <= kBytes &&
                          std::all_of(owner.begin() + static_cast<int64_t>(offset),
                                      owner.begin() + static_cast<int64_t>(range.end()),
                                      [](uint64_t o) { return o == 0; });
        ASSERT_EQ(map.Add({range.offset, range.bytes, added.size()}), fits);
        if (!fits) continue;
        std::fill_n(owner.begin() + static_cast<int64_t>(offset), range.bytes, added.size());
        added.push_back(range);
      } else {
        for (const PresentRange& gone : map.Remove(range)) {
          std::fill_n(owner.begin() + static_cast<int64_t>(gone.offset), gone.bytes, 0);
        }
        for (uint64_t i = offset; i < std::min(range.end(), kBytes); ++i) ASSERT_EQ(owner[i], 0u);
      }
      map.CheckInvariants();
    }
    ASSERT_EQ(map.present_bytes(), static_cast<uint64_t>(std::count_if(
                                       owner.begin(), owner.end(), [](auto o) { return o != 0; })));
    for (int query = 0; query < 100; ++query) {
      const uint64_t offset = below(kBytes);
      const ByteRange range{offset, 1 + below(kBytes - offset)};
      uint64_t missing = 0;
      for (uint64_t i = offset; i < range.end(); ++i) missing += owner[i] == 0;
      ASSERT_EQ(map.Contains(range), missing == 0);
      ASSERT_EQ(map.MissingBytes(range), missing);
      for (const ByteRange& gap : map.Missing(range)) {
        for (uint64_t i = gap.offset; i < gap.end(); ++i) ASSERT_EQ(owner[i], 0u);
      }
    }
  }
}

class PresenceFileTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 1 << 16;
  const TempDir dir_;
  const std::string shard_ = dir_ / "model-00001-of-000002.safetensors";

  std::unique_ptr<ShardPresence> OpenForWriting(const std::string& sha256 = kSha) {
    return ShardPresence::OpenForWriting(RealFileSystem(), shard_, kBytes, sha256);
  }
  // Writes and records a range of bytes that say where they are.
  static void Fill(ShardPresence& presence, uint64_t offset, uint64_t bytes) {
    Committer committer;
    RangeWriter writer(presence, offset);
    for (uint64_t i = 0; i < bytes; ++i) {
      const auto value = static_cast<std::byte>((offset + i) * 131 >> 3 & 0xff);
      writer.Write({&value, 1});
    }
    committer.Add(presence, writer.Finish());
    committer.Flush();
  }
};

TEST_F(PresenceFileTest, RemembersWhatWasRecorded) {
  {
    const auto presence = OpenForWriting();
    EXPECT_EQ(std::filesystem::file_size(shard_), kBytes);
    Fill(*presence, 100, 1000);
    Fill(*presence, 1100, 500);
    Fill(*presence, 5000, 10);
    EXPECT_EQ(presence->Forget({5005, 1}).size(), 1u);
    EXPECT_TRUE(presence->Contains({100, 1500}));
  }
  const auto presence = ShardPresence::OpenForReading(RealFileSystem(), shard_);
  EXPECT_FALSE(presence->can_write());
  EXPECT_EQ(presence->sha256(), kSha);
  EXPECT_EQ(presence->file_bytes(), kBytes);
  EXPECT_EQ(presence->present_bytes(), 1500u);
  EXPECT_EQ(presence->Missing({0, 2000}), (std::vector<ByteRange>{{0, 100}, {1600, 400}}));
  const auto file = RealFileSystem().OpenForReading(shard_);
  for (const PresentRange& range : presence->Ranges()) {
    EXPECT_EQ(Xxh3OfRange(*file, range.offset, range.bytes), range.checksum);
  }
}

TEST_F(PresenceFileTest, ATornJournalLosesItsLastRecordsOnly) {
  std::vector<size_t> sizes;  // of the journal after each record
  {
    const auto presence = OpenForWriting();
    sizes.push_back(Read(PresencePath(shard_)).size());
    for (uint64_t i = 0; i < 5; ++i) {
      Fill(*presence, i * 100, 50);
      sizes.push_back(Read(PresencePath(shard_)).size());
    }
  }
  const std::string whole = Read(PresencePath(shard_));
  for (size_t length = 0; length < whole.size(); ++length) {
    Overwrite(PresencePath(shard_), whole.substr(0, length));
    const auto kept = static_cast<uint64_t>(
        std::count_if(sizes.begin() + 1, sizes.end(), [&](size_t s) { return s <= length; }));
    const auto reader = ShardPresence::OpenForReading(RealFileSystem(), shard_);
    ASSERT_EQ(reader->present_bytes(), 50 * kept) << length;
    ASSERT_EQ(reader->file_bytes(), kBytes);
    if (length % 16 != 5) continue;
    // The next writer cuts the torn end off and goes on.
    const auto writer = OpenForWriting();
    ASSERT_EQ(writer->present_bytes(), 50 * kept);
    Fill(*writer, 1000, 1);
    ASSERT_EQ(ShardPresence::OpenForReading(RealFileSystem(), shard_)->present_bytes(),
              50 * kept + 1);
  }
}

TEST_F(PresenceFileTest, AnyDamagedByteOnlyEverTakesAway) {
  {
    const auto presence = OpenForWriting();
    for (uint64_t i = 0; i < 4; ++i) Fill(*presence, i * 8192, 8192);
    presence->Forget({8192, 1});
    presence->file().PunchHole(8192, 8192);
    Fill(*presence, 5 * 8192, 8192);
  }
  const std::string whole = Read(PresencePath(shard_));
  const auto before = ShardPresence::OpenForReading(RealFileSystem(), shard_);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x21);
    Overwrite(PresencePath(shard_), damaged);
    const auto reader = ShardPresence::OpenForReading(RealFileSystem(), shard_);
    for (const PresentRange& range : reader->Ranges()) {
      ASSERT_TRUE(before->Contains({range.offset, range.bytes})) << "byte " << i;
    }
  }
}

TEST_F(PresenceFileTest, AShorterOrOtherFileHasLessOrNothing) {
  {
    const auto presence = OpenForWriting();
    Fill(*presence, 0, 100);
    Fill(*presence, 4096, 100);
  }
  std::filesystem::resize_file(shard_, 4100);
  EXPECT_EQ(OpenForWriting()->present_bytes(), 100u);
  EXPECT_EQ(std::filesystem::file_size(shard_), kBytes);
  EXPECT_EQ(OpenForWriting("")->present_bytes(), 100u);
  EXPECT_EQ(OpenForWriting(std::string(64, 'b'))->present_bytes(), 0u);
  EXPECT_EQ(ShardPresence::OpenForReading(RealFileSystem(), shard_)->present_bytes(), 0u);
}

TEST_F(PresenceFileTest, VerifiedHoldsUntilSomethingIsForgotten) {
  {
    const auto presence = OpenForWriting();
    Fill(*presence, 0, kBytes);
    EXPECT_TRUE(presence->complete());
    presence->RecordVerified();
  }
  EXPECT_TRUE(ShardPresence::OpenForReading(RealFileSystem(), shard_)->verified());
  OpenForWriting()->Forget({5, 1});
  EXPECT_FALSE(ShardPresence::OpenForReading(RealFileSystem(), shard_)->verified());
}

TEST_F(PresenceFileTest, AReaderSeesWhatAWriterRecordsLater) {
  const auto writer = OpenForWriting();
  const auto reader = ShardPresence::OpenForReading(RealFileSystem(), shard_);
  EXPECT_FALSE(reader->Contains({0, 10}));
  Fill(*writer, 0, 10);
  reader->Refresh(RealFileSystem());
  EXPECT_TRUE(reader->Contains({0, 10}));
}

// Hears how one read ended.
class Waiter final : public ReadListener {
 public:
  void OnRead(uint64_t, std::span<const std::byte>) noexcept override { ended_.set_value(""); }
  void OnReadFailed(uint64_t, std::exception_ptr error) noexcept override {
    ended_.set_value(Capture(error).message);
  }
  std::string Wait() { return ended_.get_future().get(); }

 private:
  std::promise<std::string> ended_;
};

// Whoever submitted a read waits for its end: an error on the way must be that end.
TEST_F(PresenceFileTest, AJournalThatCannotBeReadAgainEndsTheReadAndNotTheQueue) {
  const auto writer = OpenForWriting();
  FaultyFileSystem faulty(RealFileSystem());
  ModelFiles files(faulty, nullptr, "");
  const auto file = files.OpenForReading(shard_);
  ASSERT_TRUE(files.streaming());
  const auto queue = files.Wrap(std::make_unique<SimpleReadQueue>(1));
  Fill(*writer, 0, 10);
  faulty.FailReads(".map", 0, 1000);
  alignas(kReadAlignment) std::byte buffer[ReadBufferBytes(10)];
  for (const bool works : {false, true}) {
    Waiter waiter;
    const ReadRequest request{file.get(), 0, 10, buffer, ReadPriority::kDemand, 1, &waiter};
    queue->Submit({&request, 1});
    EXPECT_EQ(waiter.Wait().empty(), works);
    faulty.ClearFaults();
  }
}

// A source that cannot even begin, for one that has no connection.
class UnwillingSource final : public RangeSource {
 public:
  void Fetch(std::span<const RangeRequest>) override {
    throw Error(ErrorCode::kNetwork, "no connection at all");
  }
  bool Cancel(RangeListener*, uint64_t) override { return false; }
  void Promote(RangeListener*, uint64_t) override {}
  void Drop(RangeListener*) override {}
  std::string Describe() const override { return "nowhere"; }
};

TEST_F(PresenceFileTest, ASourceThatCannotBeginEndsTheReadAndNotTheQueue) {
  OpenForWriting();
  ModelFiles files(RealFileSystem(), std::make_shared<UnwillingSource>(), "");
  const auto file = files.OpenForReading(shard_);
  const auto queue = files.Wrap(std::make_unique<SimpleReadQueue>(1));
  alignas(kReadAlignment) std::byte buffer[ReadBufferBytes(10)];
  Waiter waiter;
  const ReadRequest request{file.get(), 0, 10, buffer, ReadPriority::kDemand, 1, &waiter};
  queue->Submit({&request, 1});
  EXPECT_EQ(waiter.Wait(), "no connection at all");
  EXPECT_THROW(file->ReadAt(0, std::span(buffer).first(10)), Error);
}

// A pass may ask for all experts of a layer at once.
TEST_F(PresenceFileTest, RangesThatWaitTakeNoMemory) {
  const auto presence = OpenForWriting();
  const uint64_t before = ReadProcessMemory().resident_bytes;
  std::vector<RangeWriter> waiting;
  waiting.reserve(2000);
  for (uint64_t i = 0; i < 2000; ++i) waiting.emplace_back(*presence, i);
  EXPECT_LT(ReadProcessMemory().resident_bytes, before + (uint64_t{32} << 20));
}

TEST_F(PresenceFileTest, ALongJournalIsShortened) {
  {
    const auto presence = OpenForWriting();
    Fill(*presence, 0, 10);
    for (int i = 0; i < 3000; ++i) presence->Forget({20000, 1});
  }
  const size_t before = Read(PresencePath(shard_)).size();
  EXPECT_EQ(OpenForWriting()->present_bytes(), 10u);
  EXPECT_LT(Read(PresencePath(shard_)).size(), before / 100);
}

TEST_F(PresenceFileTest, WithoutAJournalThereIsNothingToSay) {
  EXPECT_EQ(ShardPresence::OpenForReading(RealFileSystem(), shard_), nullptr);
}

TEST(InstallLockTest, OneFillsManyUseOneOwns) {
  const TempDir dir;
  EXPECT_FALSE(InstallLock::Use(dir.path()).has_value());  // nothing to protect
  const auto fill = InstallLock::TryFill(dir.path());
  ASSERT_TRUE(fill.has_value());
  EXPECT_FALSE(InstallLock::TryFill(dir.path()).has_value());
  EXPECT_NE(InstallLock::FillerOf(dir.path()).find(std::to_string(getpid())), std::string::npos);
  EXPECT_TRUE(InstallLock::Use(dir.path()).has_value());
  EXPECT_THROW(InstallLock::Own(dir.path()), Error);
}

TEST(InstallLockTest, WhoUsesKeepsOthersFromFreeing) {
  const TempDir dir;
  { const auto made = InstallLock::TryFill(dir.path()); }
  auto use = InstallLock::Use(dir.path());
  ASSERT_TRUE(use.has_value());
  EXPECT_THROW(InstallLock::Own(dir.path()), Error);
  use.reset();
  const InstallLock own = InstallLock::Own(dir.path());
  EXPECT_THROW(InstallLock::Use(dir.path()), Error);
  EXPECT_FALSE(InstallLock::TryFill(dir.path()).has_value());
}

TEST(InstallLockTest, NoFileIsOpenedWithoutTheLock) {
  const TempDir dir;
  std::optional<InstallLock> own = InstallLock::Own(dir.path());
  Overwrite(dir / "a.safetensors", "something");
  ModelFiles files(RealFileSystem(), nullptr, "");
  for (int i = 0; i < 2; ++i)
    EXPECT_THROW((void)files.OpenForReading(dir / "a.safetensors"), Error);
  own.reset();
  EXPECT_NO_THROW((void)files.OpenForReading(dir / "a.safetensors"));
  EXPECT_THROW(InstallLock::Own(dir.path()), Error);
}

}  // namespace
}  // namespace deltafin
