#include "io/sparse_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "base/page_memory.h"
#include "deltafin/error.h"
#include "io/testing_file_system.h"

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
  const std::string path_ = testing::TempDir() + "sparse_file_" + std::to_string(::getpid());
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

// Four pages of the letters a, b, c, d.
class DirectWriteTest : public testing::Test {
 protected:
  DirectWriteTest() {
    for (size_t i = 0; i < 4 * page_; ++i) {
      memory_.data()[i] = static_cast<std::byte>('a' + i / page_);
    }
  }
  // Writes the pages from number `first` on of the file.
  bool Write(SparseFile& file, size_t first) {
    return file.WriteDirect(first * page_, {memory_.data(), 4 * page_});
  }
  // A letter for each page of the file, '?' where it is not the same all over, '0' for zeros.
  std::string Pages() {
    std::string pages;
    const std::string text = Read(path_);
    for (size_t at = 0; at < text.size(); at += page_) {
      const std::string page = text.substr(at, page_);
      const bool is_same = page.find_first_not_of(page[0]) == std::string::npos;
      pages += !is_same ? '?' : page[0] == 0 ? '0' : page[0];
    }
    return pages;
  }

  const size_t page_ = DirectWriteAlignment();
  const TempFolder dir_;
  const std::string path_ = dir_ / "shard";
  PageBuffer memory_{4 * page_};
  FaultyFileSystem fs_{RealFileSystem()};
};

TEST_F(DirectWriteTest, GoesBesideWhatGoesThroughTheCache) {
  const auto file = fs_.OpenSparse(path_, 6 * page_);
  file->WriteAt(0, Bytes(page_, 'x'));
  if (!Write(*file, 1)) GTEST_SKIP() << "no direct writes in " << path_;
  file->WriteAt(5 * page_, Bytes(page_, 'y'));
  EXPECT_EQ(Pages(), "xabcdy");
  EXPECT_EQ(fs_.direct_bytes(), 4 * page_);
  // What the cache holds of a range that is written past it is not believed later.
  EXPECT_TRUE(Write(*file, 2));
  EXPECT_EQ(Pages(), "xaabcd");
}

TEST_F(DirectWriteTest, TakesUpShortWrites) {
  const auto file = fs_.OpenSparse(path_, 4 * page_);
  fs_.ShortenFills("", 0, 1);
  if (!Write(*file, 0)) GTEST_SKIP() << "no direct writes in " << path_;
  EXPECT_EQ(Pages(), "abcd");
}

TEST_F(DirectWriteTest, ARefusalIsRemembered) {
  const auto file = fs_.OpenSparse(path_, 4 * page_);
  fs_.RefuseDirectFills();
  EXPECT_FALSE(Write(*file, 0));
  fs_.ClearFaults();
  EXPECT_FALSE(Write(*file, 0));
  file->WriteAt(0, {memory_.data(), 4 * page_});
  EXPECT_EQ(Pages(), "abcd");
}

TEST_F(DirectWriteTest, SaysWhatWentWrong) {
  const auto file = fs_.OpenSparse(path_, 4 * page_);
  for (const auto& [error, code] :
       {std::pair{ENOSPC, ErrorCode::kNoSpace}, {EIO, ErrorCode::kIo}}) {
    fs_.FailFills("shard", error, 0, 2);
    for (const bool direct : {true, false}) {
      try {
        if (direct) {
          (void)Write(*file, 0);
        } else {
          file->WriteAt(0, {memory_.data(), 10});
        }
        FAIL();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), code);
        EXPECT_NE(std::string(e.what()).find(path_), std::string::npos);
      }
    }
    fs_.ClearFaults();
  }
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
