#include "io/sparse_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "deltafin/error.h"

namespace deltafin {
namespace {

std::vector<std::byte> Bytes(size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

// A folder for one test.
class TempFolder {
 public:
  TempFolder() {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  const std::string path_ = testing::TempDir() + "/sparse_file";
};

std::string Read(const std::string& path) {
  return ReadWholeFile(RealFileSystem(), path, uint64_t{1} << 30);
}

TEST(SparseFileTest, WritesAnywhereAndKnowsItsHoles) {
  const TempFolder dir;
  const std::string path = dir / "shard";
  constexpr uint64_t kBytes = uint64_t{1} << 22;
  {
    SparseFile file(path, kBytes);
    EXPECT_EQ(std::filesystem::file_size(path), kBytes);
    file.WriteAt(1 << 20, Bytes(1 << 20, 7));
    file.StartWriteback(1 << 20, 1 << 20);
    file.Sync();
    file.WriteAt(3 << 20, Bytes(4096, 9));  // not on the disk yet: it stays
    file.DropFromCache(0, kBytes);
  }
  SparseFile file(path, kBytes);
  const auto reader = RealFileSystem().OpenForReading(path);
  EXPECT_TRUE(IsFilled(*reader, 1 << 20, 1 << 20));
  EXPECT_FALSE(IsFilled(*reader, 0, 4096));
  EXPECT_FALSE(IsFilled(*reader, 1 << 20, (1 << 20) + 1));
  file.PunchHole(1 << 20, 1 << 19);
  EXPECT_FALSE(IsFilled(*reader, 1 << 20, 4096));
  EXPECT_TRUE(IsFilled(*reader, (1 << 20) + (1 << 19), 1 << 19));
  const std::string text = Read(path);
  EXPECT_EQ(text[1 << 20], 0);
  EXPECT_EQ(text[(1 << 20) + (1 << 19)], 7);
  EXPECT_EQ(text[3 << 20], 9);
}

TEST(SparseFileTest, GetsTheSizeThatIsAskedFor) {
  const TempFolder dir;
  { SparseFile file(dir / "shard", 1000); }
  { SparseFile file(dir / "shard", 10); }
  EXPECT_EQ(std::filesystem::file_size(dir / "shard"), 10u);
  EXPECT_THROW(SparseFile(dir / "absent/shard", 10), Error);
}

TEST(SparseFileTest, SaysThatTheDiskIsFull) {
  // A device that refuses every write as a full disk does.
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  JournalFile* journal = nullptr;
  EXPECT_THROW(journal = new JournalFile("/dev/full", 0), Error);
  EXPECT_EQ(journal, nullptr);
}

TEST(JournalFileTest, CutsWhatWasTornAndAppends) {
  const TempFolder dir;
  const std::string path = dir / "journal";
  {
    JournalFile journal(path, 0);
    journal.Append("one ");
    journal.Append("torn");
  }
  JournalFile journal(path, 4);
  EXPECT_EQ(journal.size(), 4u);
  journal.Append("two");
  EXPECT_EQ(Read(path), "one two");
}

TEST(FileLockTest, OneExclusiveOrManyShared) {
  using Kind = FileLock::Kind;
  const TempFolder dir;
  const std::string path = dir / "lock";
  {
    const auto one = FileLock::Try(path, Kind::kShared);
    const auto two = FileLock::Try(path, Kind::kShared);
    EXPECT_TRUE(one.has_value());
    EXPECT_TRUE(two.has_value());
    EXPECT_FALSE(FileLock::Try(path, Kind::kExclusive).has_value());
  }
  const auto owner = FileLock::Try(path, Kind::kExclusive);
  EXPECT_TRUE(owner.has_value());
  EXPECT_FALSE(FileLock::Try(path, Kind::kShared).has_value());
  EXPECT_EQ(FileLock::HolderOf(path), getpid());
  EXPECT_EQ(FileLock::HolderOf(dir / "absent"), 0);
}

}  // namespace
}  // namespace deltafin
