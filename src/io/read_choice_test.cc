#include "io/read_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "deltafin/json.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ReadChoiceTest : public ::testing::Test {
 protected:
  ReadChoiceTest() {
    std::string pattern = ::testing::TempDir() + "deltafin_choice_XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    const std::string path = JoinPath(dir_, "shard");
    std::ofstream(path, std::ios::binary) << std::string(24 << 20, 'x');
    fs::resize_file(path, (uint64_t{1} << 30) + 1);  // big enough to be worth measuring
    shard_ = RealFileSystem().OpenForReading(path);
  }
  ~ReadChoiceTest() override {
    fs::permissions(dir_, fs::perms::owner_all);
    fs::remove_all(dir_);
  }

  ReadChoice Choose() { return ChooseReadOptions(dir_, {shard_.get()}, 0.05); }
  std::string MemoryFile() const { return JoinPath(dir_, ".deltafin/device.json"); }
  Json Memory() const {
    return ParseJson(ReadWholeFile(RealFileSystem(), MemoryFile(), 1 << 20), MemoryFile());
  }
  void Write(const std::string& text) { std::ofstream(MemoryFile(), std::ios::binary) << text; }

  std::string dir_;
  std::unique_ptr<ReadableFile> shard_;
};

TEST_F(ReadChoiceTest, MeasuresOnceAndRemembers) {
  const ReadChoice measured = Choose();
  EXPECT_EQ(measured.source, "measured");
  EXPECT_GT(measured.bytes_per_second, 0);
  EXPECT_EQ(Memory()["version"], 1);
  const ReadChoice remembered = Choose();
  EXPECT_EQ(remembered.source, "remembered");
  EXPECT_EQ(remembered.options.engine, measured.options.engine);
  EXPECT_EQ(remembered.options.mode, measured.options.mode);
  EXPECT_EQ(remembered.options.depth, measured.options.depth);
  EXPECT_EQ(remembered.options.split_bytes, measured.options.split_bytes);
  EXPECT_EQ(remembered.bytes_per_second, measured.bytes_per_second);
}

TEST_F(ReadChoiceTest, WhatIsWrittenDecides) {
  Choose();
  Json memory = Memory();
  memory["disks"][0]["engine"] = "threads";
  memory["disks"][0]["mode"] = "buffered";
  memory["disks"][0]["depth"] = 3;
  memory["disks"][0]["split_bytes"] = 65536;
  // Another disk's entry stays, and does not count.
  memory["disks"].insert(memory["disks"].begin(), {{"disk", "other"}, {"kernel", "x"}});
  Write(memory.dump());
  const ReadChoice choice = Choose();
  EXPECT_EQ(choice.source, "remembered");
  EXPECT_EQ(choice.options.engine, ReadEngine::kThreads);
  EXPECT_EQ(choice.options.mode, ReadMode::kBuffered);
  EXPECT_EQ(choice.options.depth, 3);
  EXPECT_EQ(choice.options.split_bytes, 65536u);
}

// Each is measured again and replaced by a good file.
TEST_F(ReadChoiceTest, UnusableMemoryIsMeasuredAgain) {
  Choose();
  const Json good = Memory();
  const auto with = [&](const char* field, const Json& value) {
    Json changed = good;
    changed["disks"][0][field] = value;
    return changed.dump();
  };
  const std::string text = good.dump();
  for (const std::string& bad : {
           std::string(),
           std::string("not json"),
           std::string("[]"),
           std::string("null"),
           std::string(R"({"version":2})"),
           std::string(R"({"version":1,"disks":{}})"),
           std::string(R"({"version":1,"disks":[1,null,[]]})"),
           text.substr(0, text.size() / 2),
           with("kernel", "another"),
           with("disk", "another"),
           with("engine", "mmap"),
           with("mode", 7),
           with("depth", 0),
           with("depth", 1e300),
           with("depth", "8"),
           with("split_bytes", 12),
           with("split_bytes", -1),
           with("bytes_per_second", nullptr),
           std::string(2 << 20, ' '),
       }) {
    Write(bad);
    EXPECT_EQ(Choose().source, "measured") << bad.substr(0, 200);
    EXPECT_EQ(Choose().source, "remembered");
  }
  Write(with("disk", "another"));
  Choose();
  EXPECT_EQ(Memory()["disks"].size(), 2u);
}

TEST_F(ReadChoiceTest, AFolderThatCannotBeWrittenIsNoError) {
  std::ofstream(JoinPath(dir_, ".deltafin")) << "a file in its place";  // stops root as well
  EXPECT_EQ(Choose().source, "measured");
  EXPECT_EQ(Choose().source, "measured");
}

TEST_F(ReadChoiceTest, WhatIsNotMeasured) {
  const std::string path = JoinPath(dir_, "small");
  std::ofstream(path, std::ios::binary) << std::string(16 << 20, 'x');
  const auto small = RealFileSystem().OpenForReading(path);
  EXPECT_THAT(ChooseReadOptions(dir_, {small.get()}).source, HasSubstr("small"));
  const std::string empty = JoinPath(dir_, "empty");
  std::ofstream(empty, std::ios::binary) << "";
  fs::resize_file(empty, uint64_t{2} << 30);
  const auto hole = RealFileSystem().OpenForReading(empty);
  EXPECT_THAT(ChooseReadOptions(dir_, {hole.get()}).source, HasSubstr("hardly anything"));
  EXPECT_FALSE(fs::exists(MemoryFile()));
}

}  // namespace
}  // namespace deltafin
