#include "store/expert_heat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "io/file.h"
#include "io/hash.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr ExpertShape kHeatShape{3, 4};

ExpertHeat Learned() {
  ExpertHeat heat(kHeatShape);
  const std::vector<int32_t> often = {2, 1};
  const std::vector<int32_t> seldom = {2};
  for (int i = 0; i < 10; ++i) heat.OnPass(1, i % 2 == 0 ? often : seldom);
  heat.OnPass(2, std::vector<int32_t>{0});
  return heat;
}

TEST(ExpertHeat, RatesAreUsesPerPass) {
  const ExpertHeat heat = Learned();
  EXPECT_FLOAT_EQ(heat.Rate(kHeatShape.Key(1, 2)), 1);
  EXPECT_NEAR(heat.Rate(kHeatShape.Key(1, 1)), 0.5, 0.01);  // the later passes weigh a little more
  EXPECT_EQ(heat.Rate(kHeatShape.Key(1, 0)), 0);
  EXPECT_EQ(heat.Rate(kHeatShape.Key(0, 0)), 0);  // a layer that never ran
  EXPECT_FLOAT_EQ(heat.Rate(kHeatShape.Key(2, 0)), 1);
}

TEST(ExpertHeat, OldUsesFade) {
  ExpertHeat heat(kHeatShape);
  heat.OnPass(1, std::vector<int32_t>{3});
  float before = heat.Rate(kHeatShape.Key(1, 3));
  for (int i = 0; i < 300; ++i) {
    heat.OnPass(1, std::vector<int32_t>{0});
    ASSERT_LT(heat.Rate(kHeatShape.Key(1, 3)), before);
    before = heat.Rate(kHeatShape.Key(1, 3));
  }
  EXPECT_LT(before, 0.005);
}

TEST(ExpertHeat, HottestFirst) {
  const ExpertHeat heat = Learned();
  EXPECT_THAT(heat.Hottest(10),
              ElementsAre(kHeatShape.Key(1, 2), kHeatShape.Key(2, 0), kHeatShape.Key(1, 1)));
  EXPECT_THAT(heat.Hottest(1), ElementsAre(kHeatShape.Key(1, 2)));
  EXPECT_THAT(ExpertHeat(kHeatShape).Hottest(5), IsEmpty());
  EXPECT_TRUE(ExpertHeat(kHeatShape).empty());
  EXPECT_FALSE(heat.empty());
}

TEST(ExpertHeat, SurvivesTheFile) {
  const TempDir dir;
  const std::string path = dir / "new/folder/heat";
  EXPECT_TRUE(SaveHeat(path, Learned().Serialize()));
  ExpertHeat heat(kHeatShape);
  EXPECT_TRUE(LoadHeat(path, heat));
  EXPECT_EQ(heat.Serialize(), Learned().Serialize());
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(ExpertHeat, UnusableFilesAreIgnored) {
  const TempDir dir;
  const std::string path = dir / "heat";
  const std::string good = Learned().Serialize();
  ExpertHeat heat(kHeatShape);
  const std::string untouched = heat.Serialize();
  EXPECT_FALSE(LoadHeat(path, heat));        // there is none
  EXPECT_FALSE(LoadHeat(dir.path(), heat));  // a folder

  std::vector<std::string> bad = {"", good.substr(0, 7), good.substr(0, good.size() - 1),
                                  good + "x"};
  for (size_t at = 0; at < good.size(); ++at) {
    bad.push_back(good);
    bad.back()[at] = static_cast<char>(bad.back()[at] ^ 0x10);
  }
  // Right checksum, wrong content: another version, another shape, a rate that is none.
  auto resealed = [&](size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    const size_t body = bytes.size() - 8;
    const uint64_t checksum = Xxh3(std::as_bytes(std::span(bytes.data(), body)));
    std::memcpy(bytes.data() + body, &checksum, sizeof(checksum));
    return bytes;
  };
  EXPECT_TRUE(heat.Parse(resealed(0, 'D')));  // the resealing itself is right
  heat = ExpertHeat(kHeatShape);
  bad.push_back(resealed(7, '2'));
  bad.push_back(resealed(8, 4));
  bad.push_back(resealed(19, char(0x7f)));  // a weight of 1e38 or NaN
  for (const std::string& bytes : bad) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_FALSE(LoadHeat(path, heat)) << bytes.size();
    EXPECT_EQ(heat.Serialize(), untouched);
  }
  ExpertHeat other({4, 3});
  EXPECT_FALSE(other.Parse(good));
}

TEST(ExpertHeat, AFolderThatCannotBeWrittenIsNoError) {
  const TempDir dir;
  std::ofstream(dir / "file") << "x";
  EXPECT_FALSE(SaveHeat(dir / "file/heat", "bytes"));
  EXPECT_FALSE(SaveHeat("/proc/heat", "bytes"));
  std::filesystem::create_directories(dir / "heat/occupied");
  EXPECT_FALSE(SaveHeat(dir / "heat", "bytes"));
}

// A reader never sees half a file, whatever a writer is doing.
TEST(ExpertHeat, ReplacedAsAWhole) {
  const TempDir dir;
  const std::string path = dir / "heat";
  const std::string bytes = Learned().Serialize();
  ASSERT_TRUE(SaveHeat(path, bytes));
  std::jthread writer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) SaveHeat(path, bytes);
  });
  for (int i = 0; i < 200; ++i) {
    ExpertHeat heat(kHeatShape);
    ASSERT_TRUE(LoadHeat(path, heat));
  }
}

}  // namespace
}  // namespace deltafin
