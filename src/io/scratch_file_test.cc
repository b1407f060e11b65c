#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "deltafin/error.h"
#include "io/file.h"
#include "io/testing_file_system.h"

namespace deltafin {
namespace {

std::vector<std::byte> Pattern(size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed);
  return bytes;
}

class ScratchFileTest : public testing::Test {
 protected:
  ScratchFileTest() { std::filesystem::remove_all(root_); }
  ~ScratchFileTest() override { std::filesystem::remove_all(root_); }

  const std::string root_ = testing::TempDir() + "scratch_file_test_" + std::to_string(::getpid());
  const std::string folder_ = root_ + "/deep";
};

TEST_F(ScratchFileTest, OneThatCannotBeMadeLeavesNothing) {
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = ::dup(0);  // room for one more file: it takes two
  ::close(next);
  const rlimit few = {static_cast<rlim_t>(next) + 1, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_THROW((void)RealFileSystem().CreateScratch(folder_), Error);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(ScratchFileTest, HoldsWhatIsWrittenAndHasNoName) {
  const auto file = RealFileSystem().CreateScratch(folder_);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  const auto one = Pattern(10'000, 1);
  const auto two = Pattern(10'000, 2);
  file->WriteAt(40'960, two);
  file->WriteAt(0, one);
  std::vector<std::byte> back(10'000);
  file->ReadAt(0, back);
  EXPECT_EQ(back, one);
  file->ReadAt(40'960, back);
  EXPECT_EQ(back, two);
  alignas(kReadAlignment) static std::byte page[2 * kReadAlignment];
  file->ReadDirect(40'960, page, 5'000);
  EXPECT_TRUE(std::equal(page, page + 5'000, two.begin()));
  file->Discard(0, 8'192);
  file->ReadAt(40'960, back);
  EXPECT_EQ(back, two);
}

TEST_F(ScratchFileTest, ReadingWhatIsNotThereFails) {
  const auto file = RealFileSystem().CreateScratch(folder_);
  std::vector<std::byte> back(1);
  EXPECT_THROW(file->ReadAt(0, back), Error);
}

TEST_F(ScratchFileTest, AFolderThatCannotBeMadeIsAnError) {
  EXPECT_THROW(RealFileSystem().CreateScratch("/dev/null/folder"), Error);
}

TEST_F(ScratchFileTest, FaultsReachIt) {
  FaultyFileSystem faulty(RealFileSystem());
  const auto file = faulty.CreateScratch(folder_);
  const auto bytes = Pattern(100, 3);
  faulty.FailWrites(ErrorCode::kNoSpace, 1);
  file->WriteAt(0, bytes);
  EXPECT_THROW(file->WriteAt(100, bytes), Error);
  file->WriteAt(100, bytes);
  std::vector<std::byte> back(100);
  faulty.FailReads("scratch", 0);
  EXPECT_THROW(file->ReadAt(100, back), Error);
  file->ReadAt(100, back);
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(faulty.num_writes(), 3);
}

}  // namespace
}  // namespace deltafin
