#include "io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include "deltafin/error.h"
#include "io/file.h"

namespace deltafin {
namespace {

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "atomic_file_" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
    MakeFolders(folder_ + "/a/b");
    path_ = folder_ + "/a/b/file";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::span<const std::byte> Bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
  }
  std::string Read() const { return ReadWholeFile(RealFileSystem(), path_, 1 << 20); }

  std::string folder_;
  std::string path_;
};

TEST_F(AtomicFileTest, AppearsWhenItIsComplete) {
  {
    AtomicFile file(path_);
    file.WriteAt(4, Bytes("world"));
    file.WriteAt(0, Bytes("abcd"));
    EXPECT_FALSE(std::filesystem::exists(path_));
    file.Commit();
  }
  EXPECT_EQ(Read(), "abcdworld");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
}

TEST_F(AtomicFileTest, WhatIsNeverWrittenTakesNoRoom) {
  constexpr uint64_t kSize = uint64_t{256} << 20;
  {
    AtomicFile file(path_);
    file.Resize(kSize);
    file.WriteAt(5000, Bytes("here"));
    file.Commit();
  }
  EXPECT_EQ(std::filesystem::file_size(path_), kSize);
  EXPECT_GT(DiskBytesOf(path_), 0u);
  EXPECT_LT(DiskBytesOf(path_), kSize / 2);
  EXPECT_EQ(DiskBytesOf(path_ + ".none"), 0u);
  const auto file = RealFileSystem().OpenForReading(path_);
  std::string text(6, 'x');
  file->ReadAt(4999, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, std::string("\0here\0", 6));
}

TEST_F(AtomicFileTest, WithoutCommitTheOldOneStays) {
  std::ofstream(path_) << "old";
  {
    AtomicFile file(path_);
    file.WriteAt(0, Bytes("half"));
  }
  EXPECT_EQ(Read(), "old");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
}

TEST_F(AtomicFileTest, AWriteThatFailsIsAnError) {
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 1000;
  std::signal(SIGXFSZ, SIG_IGN);
  AtomicFile file(path_);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    file.WriteAt(0, Bytes(std::string(5000, 'x')));
  } catch (const Error& e) {
    message = e.what();
    EXPECT_EQ(e.code(), ErrorCode::kIo);
  }
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(message, testing::HasSubstr(path_ + ".tmp: cannot write it: "));
}

TEST_F(AtomicFileTest, OneLockAtATime) {
  std::optional<FolderLock> lock(folder_);
  EXPECT_THROW(FolderLock(std::string(folder_)), Error);
  lock.reset();
  EXPECT_NO_THROW(FolderLock(std::string(folder_)));
}

TEST_F(AtomicFileTest, Folders) {
  EXPECT_GT(FreeDiskBytes(folder_), 0u);
  EXPECT_THROW(FreeDiskBytes(folder_ + "/none"), Error);
  std::ofstream(path_) << "x";
  EXPECT_NO_THROW(MakeFolders(folder_));
  EXPECT_THROW(MakeFolders(path_), Error);
  EXPECT_THROW(MakeFolders(path_ + "/below a file"), Error);
  RemoveFile(path_);
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_NO_THROW(RemoveFile(path_));
}

}  // namespace
}  // namespace deltafin
