// Ranges on their way to the disk: any alignment, neighbours in one page, and file systems that
// refuse, fail, write less than they were asked to, or are full.
#include "hub/write_behind.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hub/unit_fetcher.h"
#include "hub_double.h"
#include "hub_model.h"
#include "io/hash.h"
#include "io/testing_file_system.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

constexpr uint64_t kBlock = WriteBehind::kBlockBytes;

// What belongs at [offset, offset + bytes) of the shard: no two pages are alike.
std::vector<std::byte> Content(uint64_t offset, uint64_t bytes) {
  std::vector<std::byte> content(bytes);
  for (uint64_t i = 0; i < bytes; ++i) {
    const uint64_t at = offset + i;
    content[i] = static_cast<std::byte>((at * 131 + (at >> 12) * 17 + (at >> 20) * 5) % 251 + 1);
  }
  return content;
}

class WriteBehindTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 9 * kBlock + 4321;

  std::unique_ptr<ShardPresence> Open() {
    return ShardPresence::OpenForWriting(fs_, path_, kBytes, "");
  }
  // As from a connection, in pieces.
  static void Bring(WriteBehind& behind, ShardPresence& shard, ByteRange range,
                    size_t piece = 16 << 10) {
    WriteBehind::Range writer(behind, shard, range.offset);
    const std::vector<std::byte> content = Content(range.offset, range.bytes);
    std::span<const std::byte> rest = content;
    try {
      while (!rest.empty()) {
        const auto part = rest.first(std::min(piece, rest.size()));
        writer.Write(part);
        rest = rest.subspan(part.size());
      }
    } catch (const Error&) {
      writer.Finish();
      throw;
    }
    writer.Finish();
  }
  // What is recorded is on the disk, seen both through the cache and past it.
  void ExpectRight(const std::vector<ByteRange>& ranges) {
    const auto shard = ShardPresence::OpenForReading(RealFileSystem(), path_);
    const auto file = RealFileSystem().OpenForReading(path_);
    PageBuffer memory(10 * kBlock);  // as the file, and whole pages
    file->ReadDirect(0, {memory.data(), memory.size()}, kBytes);
    for (const ByteRange& range : ranges) {
      EXPECT_TRUE(shard->Contains(range)) << range.offset;
    }
    for (const PresentRange& range : shard->Ranges()) {
      const std::vector<std::byte> content = Content(range.offset, range.bytes);
      EXPECT_EQ(Xxh3(content), range.checksum);
      std::vector<std::byte> cached(range.bytes);
      file->ReadAt(range.offset, cached);
      EXPECT_TRUE(cached == content) << range.offset;
      EXPECT_TRUE(std::equal(content.begin(), content.end(), memory.data() + range.offset))
          << range.offset;
    }
  }

  const TempDir dir_;
  const std::string path_ = dir_ / "model-00001-of-000002.safetensors";
  FaultyFileSystem fs_{RealFileSystem()};
};

TEST_F(WriteBehindTest, AnyRangeComesWholeWhateverItsEdges) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 12; ++trial) {
    std::filesystem::remove_all(dir_.path());
    const auto shard = Open();
    std::vector<ByteRange> ranges;
    for (uint64_t at = 0; at < kBytes;) {
      // Also single bytes, whole blocks, and what ends just beside a page's edge.
      uint64_t end = at + 1 + random() % (random() % 4 == 0 ? 9000 : 3 * kBlock);
      if (random() % 3 == 0) end = (end + 4095) / 4096 * 4096 + random() % 3 - 1;
      end = std::min(std::max(end, at + 1), kBytes);
      ranges.push_back({at, end - at});
      at = end;
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    Committer committer;
    {
      WriteBehind behind(committer);
      for (const ByteRange& range : ranges) {
        Bring(behind, *shard, range, 1 + random() % (200 << 10));
      }
      behind.Flush();
    }
    committer.Flush();
    EXPECT_TRUE(shard->complete());
    ExpectRight(ranges);
  }
}

TEST_F(WriteBehindTest, WholePagesGoPastTheCacheAndTheEdgesThroughIt) {
  const auto shard = Open();
  Committer committer;
  WriteBehind behind(committer);
  Bring(behind, *shard, {100, 3 * kBlock});
  behind.Flush();
  committer.Flush();
  if (fs_.direct_bytes() == 0) GTEST_SKIP() << "no direct writes in " << dir_.path();
  const size_t page = DirectWriteAlignment();
  EXPECT_EQ(fs_.direct_bytes(), 3 * kBlock - page);
  EXPECT_EQ(fs_.cached_bytes(), page);
  ExpectRight({{100, 3 * kBlock}});
}

// Many connections at once, whose ranges meet in the middle of pages; beside them another process
// (its own descriptors) does the same to the ranges between.
TEST_F(WriteBehindTest, NeighboursThatShareAPageDoNotHarmEachOther) {
  constexpr uint64_t kRange = 300'001;
  const auto shard = Open();
  const auto other = std::make_unique<SparseFile>(path_, kBytes);
  std::vector<ByteRange> mine;
  std::vector<ByteRange> others;
  for (uint64_t at = 0; at < kBytes; at += kRange) {
    const bool is_mine = at / kRange % 3 != 0;
    (is_mine ? mine : others).push_back({at, std::min(kRange, kBytes - at)});
  }
  Committer committer;
  WriteBehind behind(committer);
  std::thread process([&] {
    const size_t page = DirectWriteAlignment();
    PageBuffer memory(1 << 20);
    for (const ByteRange& range : others) {
      const auto content = Content(range.offset, range.bytes);
      const uint64_t begin = (range.offset + page - 1) / page * page;
      const uint64_t end = range.end() / page * page;
      const std::span<const std::byte> all = content;
      std::copy_n(content.begin() + static_cast<ptrdiff_t>(begin - range.offset), end - begin,
                  memory.data());
      other->WriteAt(range.offset, all.first(begin - range.offset));
      if (!other->WriteDirect(begin, {memory.data(), end - begin})) {
        other->WriteAt(begin, {memory.data(), end - begin});
      }
      other->WriteAt(end, all.subspan(end - range.offset));
    }
  });
  std::vector<std::thread> connections;
  std::atomic<size_t> next = 0;
  for (int i = 0; i < 4; ++i) {
    connections.emplace_back([&] {
      for (size_t n = next++; n < mine.size(); n = next++) Bring(behind, *shard, mine[n]);
    });
  }
  for (std::thread& connection : connections) connection.join();
  process.join();
  behind.Flush();
  for (const ByteRange& range : others) {
    committer.Add(*shard, {range.offset, range.bytes, Xxh3(Content(range.offset, range.bytes))});
  }
  committer.Flush();
  EXPECT_TRUE(shard->complete());
  ExpectRight({{0, kBytes}});
}

TEST_F(WriteBehindTest, WhereDirectWritesAreRefusedTheCacheIsUsed) {
  fs_.RefuseDirectFills();
  const auto shard = Open();
  Committer committer;
  WriteBehind behind(committer);
  Bring(behind, *shard, {4000, 2 * kBlock});
  behind.Flush();
  committer.Flush();
  EXPECT_EQ(fs_.direct_bytes(), 0u);
  EXPECT_EQ(fs_.cached_bytes(), 2 * kBlock);
  ExpectRight({{4000, 2 * kBlock}});
}

TEST_F(WriteBehindTest, ShortWritesAreTakenUp) {
  fs_.ShortenFills("", 0, 1000);
  const auto shard = Open();
  Committer committer;
  WriteBehind behind(committer);
  Bring(behind, *shard, {4000, 4 * kBlock + 5});
  Bring(behind, *shard, {4 * kBlock + 4005, 10});
  behind.Flush();
  committer.Flush();
  ExpectRight({{4000, 4 * kBlock + 15}});
}

// Nobody waits long for a disk that is slow with direct writes.
TEST_F(WriteBehindTest, ADiskThatIsSlowWithDirectWritesGetsTheRestThroughTheCache) {
  const auto shard = Open();
  Committer committer;
  WriteBehind behind(committer);
  Bring(behind, *shard, {0, kBlock});
  behind.Flush();
  if (fs_.direct_bytes() == 0) GTEST_SKIP() << "no direct writes in " << dir_.path();
  fs_.SetDirectDelay(std::chrono::milliseconds(200));
  const std::string second = dir_ / "model-00002-of-000002.safetensors";
  const uint64_t bytes = 3 * WriteBehind::kMaxQueued * kBlock;
  const auto large = ShardPresence::OpenForWriting(fs_, second, bytes, "");
  Bring(behind, *large, {0, bytes}, kBlock);
  EXPECT_GT(fs_.cached_bytes(), bytes / 3);
  fs_.SetDirectDelay(std::chrono::milliseconds(0));
  behind.Flush();
  committer.Flush();
  EXPECT_TRUE(large->complete());
  const auto file = RealFileSystem().OpenForReading(second);
  EXPECT_EQ(Xxh3OfRange(*file, 0, bytes), large->Ranges()[0].checksum);
}

// Whichever write fails first: the ranges that it hit are missing, the others are there, and it
// goes on from there.
TEST_F(WriteBehindTest, AFullOrBrokenDiskCostsTheRangesThatItHits) {
  const std::vector<ByteRange> ranges = {
      {10, 2 * kBlock}, {2 * kBlock + 10, 5000}, {2 * kBlock + 5010, kBlock}, {4 * kBlock, kBlock}};
  for (const int error : {ENOSPC, EIO}) {
    for (int skip = 0; skip < 14; ++skip) {
      std::filesystem::remove_all(dir_.path());
      const auto shard = Open();
      Committer committer;
      WriteBehind behind(committer);
      fs_.FailFills("", error, skip, 3);
      int failures = 0;
      const auto count = [&](auto&& action) {
        try {
          action();
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), error == ENOSPC ? ErrorCode::kNoSpace : ErrorCode::kIo);
          EXPECT_NE(std::string(e.what()).find(path_), std::string::npos);
          ++failures;
        }
      };
      for (const ByteRange& range : ranges) count([&] { Bring(behind, *shard, range); });
      count([&] { behind.Flush(); });
      committer.Flush();
      fs_.ClearFaults();
      EXPECT_EQ(failures > 0,
                !shard->Contains({10, 3 * kBlock + 5000}) || !shard->Contains({4 * kBlock, kBlock}))
          << skip;
      ExpectRight({});
      for (const ByteRange& range : ranges) {
        for (const ByteRange& gap : shard->Missing(range)) Bring(behind, *shard, gap);
      }
      behind.Flush();
      committer.Flush();
      ExpectRight(ranges);
    }
  }
}

// ---- setup's fetching on top of it ----

TEST(UnitFetcherTest, AFullDiskEndsARunAndTheNextOneGoesOn) {
  const std::string& root = SmallModelDir();
  HubDouble hub(root);
  HubClient client(QuickHubOptions(hub.endpoint()));
  for (int skip = 0; skip < 12; skip += 3) {
    const TempDir dir;
    FaultyFileSystem fs(RealFileSystem());
    Committer committer;
    FolderShard shard;
    shard.remote.name = ShardName(root, 2);
    shard.remote.bytes = std::filesystem::file_size(root + "/" + shard.remote.name);
    shard.path = dir / shard.remote.name;
    shard.presence = ShardPresence::OpenForWriting(fs, shard.path, shard.remote.bytes, "");
    UnitFetcher fetcher(client, committer);
    const auto run = [&] {
      std::vector<FetchPiece> pieces;
      for (uint64_t at = 0; at < shard.remote.bytes; at += 50'001) {
        const ByteRange range{at, std::min<uint64_t>(50'001, shard.remote.bytes - at)};
        for (const ByteRange& gap : shard.presence->Missing(range)) pieces.push_back({&shard, gap});
      }
      return fetcher.Run(std::move(pieces), [](const UnitFetcher::Status&) { return true; });
    };
    fs.FailFills("", ENOSPC, skip, 1'000'000);
    EXPECT_EQ(run(), UnitFetcher::Outcome::kDiskFull);
    committer.Flush();
    EXPECT_FALSE(shard.presence->complete());
    fs.ClearFaults();
    EXPECT_EQ(run(), UnitFetcher::Outcome::kDone);
    committer.Flush();
    EXPECT_TRUE(shard.presence->complete());
    EXPECT_TRUE(SameBytes(root + "/" + shard.remote.name, shard.path));
    fs.FailFills("", EIO, 0, 1'000'000);
    shard.presence->Forget({0, shard.remote.bytes});
    EXPECT_THROW(run(), Error);
  }
}

}  // namespace
}  // namespace deltafin
