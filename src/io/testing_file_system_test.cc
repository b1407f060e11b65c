#include "io/testing_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deltafin {
namespace {

class FaultyFileSystemTest : public ::testing::Test {
 protected:
  FaultyFileSystemTest() {
    memory_.Write("dir/a", "0123456789");
    memory_.Write("dir/b", "abcdefghij");
  }

  // "" when the read fails.
  static std::string Read(const ReadableFile& file, uint64_t offset, size_t bytes) {
    std::string text(bytes, '?');
    try {
      file.ReadAt(offset, std::as_writable_bytes(std::span(text)));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kIo);
      return "";
    }
    return text;
  }

  MemoryFileSystem memory_;
  FaultyFileSystem fs_{memory_};
};

TEST_F(FaultyFileSystemTest, PassesOnWhatIsNotBroken) {
  EXPECT_EQ(Read(*fs_.OpenForReading("dir/a"), 3, 4), "3456");
  EXPECT_EQ(Read(*fs_.OpenForReading("dir/a"), 3, 8), "");
  EXPECT_TRUE(fs_.Exists("dir/a"));
  EXPECT_FALSE(fs_.Exists("dir/c"));
  EXPECT_THROW(fs_.OpenForReading("dir/c"), Error);
  EXPECT_EQ(fs_.num_reads(), 2);
  EXPECT_EQ(fs_.bytes_read(), 4u);
}

TEST_F(FaultyFileSystemTest, FailsTheNthReadOfAFile) {
  const auto a = fs_.OpenForReading("dir/a");
  const auto b = fs_.OpenForReading("dir/b");
  fs_.FailReads("/a", 1, 2);
  EXPECT_EQ(Read(*a, 0, 1), "0");
  EXPECT_EQ(Read(*b, 0, 1), "a");
  EXPECT_EQ(Read(*a, 0, 1), "");
  EXPECT_EQ(Read(*a, 0, 1), "");
  EXPECT_EQ(Read(*a, 0, 1), "0");
}

TEST_F(FaultyFileSystemTest, Truncates) {
  const auto before = fs_.OpenForReading("dir/a");
  fs_.Truncate("a", 4);
  fs_.TruncateAfterOpen("b", 4);
  EXPECT_EQ(before->size(), 10u);
  EXPECT_EQ(Read(*before, 2, 3), "");
  EXPECT_EQ(fs_.OpenForReading("dir/a")->size(), 4u);
  const auto b = fs_.OpenForReading("dir/b");
  EXPECT_EQ(b->size(), 10u);
  EXPECT_EQ(Read(*b, 0, 4), "abcd");
  EXPECT_EQ(Read(*b, 0, 5), "");
  fs_.ClearFaults();
  EXPECT_EQ(Read(*b, 0, 5), "abcde");
}

TEST_F(FaultyFileSystemTest, ChangesBytesAndWaits) {
  const auto a = fs_.OpenForReading("dir/a");
  fs_.ChangeByte("", 5, 1);
  EXPECT_EQ(Read(*a, 4, 3), "446");
  EXPECT_EQ(Read(*a, 5, 1), "4");
  EXPECT_EQ(Read(*a, 0, 5), "01234");
  fs_.SetDelay(std::chrono::milliseconds(20));
  const auto begin = std::chrono::steady_clock::now();
  Read(*a, 0, 1);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace deltafin
