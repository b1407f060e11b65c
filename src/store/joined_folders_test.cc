#include "store/joined_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "store/shard_presence.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

class JoinedFoldersTest : public testing::Test {
 protected:
  JoinedFoldersTest() {
    Write("a/config.json", "config of a");
    Write("a/both", "both of a");
    Write("b/both", "both of b");
    Write("b/two", "two of b");
    Write("c/two", "two of c");
    Write("c/three", "three of c");
    Write("c/.deltafin/heat", "heat of c");
  }
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  // Makes a journal that says that the first `bytes` of the file are there.
  void Record(const std::string& name, uint64_t bytes) {
    const uint64_t all = std::filesystem::file_size(dir_ / name);
    const auto shard = ShardPresence::OpenForWriting(base_, dir_ / name, all, "");
    const PresentRange range{0, bytes, 1};
    EXPECT_TRUE(shard->MarkReadable(range));
    shard->Record({&range, 1});
  }
  static std::string Read(FileSystem& fs, const std::string& path) {
    return ReadWholeFile(fs, path, 100);
  }

  const TempDir dir_;
  const std::string a_ = dir_ / "a";
  const std::string b_ = dir_ / "b";
  const std::string c_ = dir_ / "c";
  FileSystem& base_ = RealFileSystem();
};

TEST_F(JoinedFoldersTest, TheFirstFolderThatHasItWins) {
  for (const std::string& dir : {a_, a_ + "/"}) {
    JoinedFolders joined(base_, dir, {b_, c_ + "/"});
    EXPECT_EQ(Read(joined, JoinPath(dir, "config.json")), "config of a");
    EXPECT_EQ(Read(joined, JoinPath(dir, "both")), "both of a");
    EXPECT_EQ(Read(joined, JoinPath(dir, "two")), "two of b");
    EXPECT_EQ(Read(joined, JoinPath(dir, "three")), "three of c");
    EXPECT_EQ(joined.OpenForReading(JoinPath(dir, "three"))->path(), c_ + "/three");
    EXPECT_TRUE(joined.Exists(JoinPath(dir, "three")));
  }
}

TEST_F(JoinedFoldersTest, OnlyTheFilesOfTheRelease) {
  JoinedFolders joined(base_, a_, {b_, c_});
  EXPECT_FALSE(joined.Exists(a_ + "/.deltafin/heat"));
  EXPECT_FALSE(joined.Exists(b_ + "/three"));
  EXPECT_EQ(Read(joined, c_ + "/two"), "two of c");
  EXPECT_FALSE(joined.Exists(a_ + "/four"));
  try {
    joined.OpenForReading(a_ + "/four");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotFound);
    EXPECT_THAT(e.what(), testing::StartsWith(a_ + "/four: "));
  }
}

TEST_F(JoinedFoldersTest, ACompleteShardGoesBeforeAPartialOne) {
  Record("a/both", 3);
  JoinedFolders joined(base_, a_, {b_, c_});
  EXPECT_EQ(Read(joined, a_ + "/both"), "both of b");  // no journal: all of it
  Record("b/both", 3);
  EXPECT_EQ(Read(joined, a_ + "/both"), "both of a");
  Record("b/two", 8);
  Record("c/two", 7);
  EXPECT_EQ(Read(joined, a_ + "/two"), "two of b");
}

TEST_F(JoinedFoldersTest, WhatIsNoFolderIsRefused) {
  for (const std::string& wrong : {dir_ / "d", b_ + "/both"}) {
    try {
      const JoinedFolders joined(base_, a_, {b_, wrong});
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kNotFound);
      EXPECT_THAT(e.what(), testing::StartsWith(wrong + ": expected a folder"));
    }
  }
}

}  // namespace
}  // namespace deltafin
