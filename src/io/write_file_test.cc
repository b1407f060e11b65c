#include "io/write_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "io/file.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class WriteFileTest : public ::testing::Test {
 protected:
  WriteFileTest() {
    std::string pattern = ::testing::TempDir() + "deltafin_write_XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  ~WriteFileTest() override { fs::remove_all(dir_); }

  size_t NumFiles() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), {}));
  }
  std::string dir_;
};

TEST_F(WriteFileTest, ReplacesTheFileAndLeavesNothingElse) {
  const std::string path = JoinPath(dir_, "a.json");
  WriteFileAtomically(path, "first and longer");
  WriteFileAtomically(path, "second");
  EXPECT_EQ(ReadWholeFile(RealFileSystem(), path, 100), "second");
  EXPECT_EQ(NumFiles(), 1u);
  struct stat status = {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
}

TEST_F(WriteFileTest, FailureLeavesTheOldFile) {
  const std::string path = JoinPath(dir_, "a.json");
  fs::create_directory(path);  // a folder cannot be replaced by a file
  std::ofstream(JoinPath(path, "inside")) << "x";
  try {
    WriteFileAtomically(path, "text");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr(path + ": cannot write it"));
  }
  EXPECT_TRUE(fs::exists(JoinPath(path, "inside")));
  EXPECT_EQ(NumFiles(), 1u);
  EXPECT_THROW(WriteFileAtomically(JoinPath(dir_, "none/a"), "text"), Error);
}

TEST_F(WriteFileTest, NewFileAppearsWhenItIsWhole) {
  const std::string path = JoinPath(dir_, "big");
  {
    NewFile file(path, 10);
    file.WriteAt(7, std::as_bytes(std::span("xyz", 3)));
    EXPECT_FALSE(fs::exists(path));
    file.Commit();
  }
  EXPECT_EQ(ReadWholeFile(RealFileSystem(), path, 100), std::string(7, '\0') + "xyz");
  { NewFile abandoned(JoinPath(dir_, "other"), 10); }
  EXPECT_EQ(NumFiles(), 1u);
  EXPECT_THROW(NewFile(JoinPath(dir_, "none/a"), 10), Error);
}

TEST_F(WriteFileTest, NewFileReplacesNothingButFiles) {
  const std::string path = JoinPath(dir_, "pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  try {
    NewFile(path, 0).Commit();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(path + ": expected a file"));
  }
  EXPECT_TRUE(fs::is_fifo(path));
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(WriteFileTest, FullDiskIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  fs::create_symlink("/dev/full", JoinPath(dir_, "a.partial"));
  try {
    NewFile file(JoinPath(dir_, "a"), 0);
    file.WriteAt(0, std::as_bytes(std::span("xyz", 3)));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);  // some kernels cannot even truncate it
  }
}

}  // namespace
}  // namespace deltafin
