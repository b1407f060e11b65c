#include "io/joined_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/testing_file_system.h"

namespace deltafin {
namespace {

class JoinedFoldersTest : public testing::Test {
 protected:
  JoinedFoldersTest() {
    base_.Write("a/config.json", "config of a");
    base_.Write("a/both", "both of a");
    base_.Write("b/both", "both of b");
    base_.Write("b/two", "two of b");
    base_.Write("c/two", "two of c");
    base_.Write("c/three", "three of c");
    base_.Write("c/.deltafin/heat", "heat of c");
  }
  std::string Read(FileSystem& fs, const std::string& path) { return ReadWholeFile(fs, path, 100); }

  MemoryFileSystem base_;
};

TEST_F(JoinedFoldersTest, TheFirstFolderThatHasItWins) {
  for (const char* dir : {"a", "a/"}) {
    JoinedFolders joined(base_, dir, {"b", "c/"});
    EXPECT_EQ(Read(joined, JoinPath(dir, "config.json")), "config of a");
    EXPECT_EQ(Read(joined, JoinPath(dir, "both")), "both of a");
    EXPECT_EQ(Read(joined, JoinPath(dir, "two")), "two of b");
    EXPECT_EQ(Read(joined, JoinPath(dir, "three")), "three of c");
    EXPECT_EQ(joined.OpenForReading(JoinPath(dir, "three"))->path(), "c/three");
    EXPECT_TRUE(joined.Exists(JoinPath(dir, "three")));
  }
}

TEST_F(JoinedFoldersTest, OnlyTheFilesOfTheRelease) {
  JoinedFolders joined(base_, "a", {"b", "c"});
  EXPECT_FALSE(joined.Exists("a/.deltafin/heat"));
  EXPECT_FALSE(joined.Exists("b/three"));
  EXPECT_EQ(Read(joined, "c/two"), "two of c");
  EXPECT_FALSE(joined.Exists("a/four"));
  try {
    joined.OpenForReading("a/four");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotFound);
    EXPECT_THAT(e.what(), testing::StartsWith("a/four: "));
  }
}

}  // namespace
}  // namespace deltafin
