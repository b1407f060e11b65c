#include "io/disk_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "io/testing_file_system.h"

namespace deltafin {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DiskProbeTest : public ::testing::Test {
 protected:
  DiskProbeTest() {
    std::string pattern = ::testing::TempDir() + "deltafin_probe_XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  ~DiskProbeTest() override { std::filesystem::remove_all(dir_); }

  // `data_bytes` of data at the front, then a hole.
  std::unique_ptr<ReadableFile> Make(const std::string& name, size_t data_bytes, uint64_t size) {
    const std::string path = JoinPath(dir_, name);
    std::ofstream(path, std::ios::binary) << std::string(data_bytes, 'x');
    std::filesystem::resize_file(path, size);
    return RealFileSystem().OpenForReading(path);
  }

  std::string dir_;
};

TEST_F(DiskProbeTest, ReadsWhatIsOnTheDiskOnly) {
  const auto hole = Make("hole", 0, 64 << 20);
  DiskProbe nothing({hole.get()}, 100'000, 1);
  EXPECT_FALSE(nothing.has_data());
  EXPECT_THROW(nothing.Read(*MakeReadQueue({}), 1, 1), Error);

  const auto partly = Make("partly", 1 << 20, 64 << 20);
  DiskProbe probe({hole.get(), partly.get()}, 100'000, 1);
  EXPECT_TRUE(probe.has_data());
  const auto queue = MakeReadQueue({});
  EXPECT_GT(probe.Read(*queue, 20, 3), 0);
  EXPECT_GT(probe.ReadPlainly(ReadMode::kDirect, 3, 30'000, 5), 0);
  EXPECT_GT(probe.ReadPlainly(ReadMode::kBuffered, 3, 30'000, 5), 0);
}

TEST_F(DiskProbeTest, LeavesOutFilesThatItCannotMeasure) {
  MemoryFileSystem memory;
  memory.Write("a", std::string(1 << 20, 'x'));
  const auto no_descriptor = memory.OpenForReading("a");
  const auto too_short = Make("short", 99'999, 99'999);
  EXPECT_FALSE(DiskProbe({no_descriptor.get(), too_short.get()}, 100'000, 1).has_data());
  const auto just_long_enough = Make("enough", 100'000, 100'000);
  EXPECT_TRUE(DiskProbe({just_long_enough.get()}, 100'000, 1).has_data());
}

TEST_F(DiskProbeTest, MeasuresInTurns) {
  const auto file = Make("a", 4 << 20, 4 << 20);
  DiskProbe probe({file.get()}, 300'000, 1);
  const std::vector<ReadMeasurement> measured = MeasureReads(probe, QuickCandidates(), 8, 4, 0.2);
  ASSERT_THAT(measured, SizeIs(QuickCandidates().size()));
  for (const ReadMeasurement& m : measured) {
    if (!m.refused.empty()) {
      EXPECT_EQ(m.options.engine, ReadEngine::kIoUring);  // the kernel may forbid it
      EXPECT_THAT(m.rates, IsEmpty());
      continue;
    }
    ASSERT_GE(m.rates.size(), 1u);
    EXPECT_LE(measured[0].rates.size() - m.rates.size(), 1u);
    EXPECT_GE(m.best(), m.median());
  }
  EXPECT_NE(PickBest(measured), nullptr);
}

TEST_F(DiskProbeTest, AFailingDiskIsAReason) {
  const auto file = Make("a", 1 << 20, 1 << 20);
  DiskProbe probe({file.get()}, 350'000, 1);
  ASSERT_TRUE(probe.has_data());
  std::filesystem::resize_file(file->path(), 0);
  const std::vector<ReadMeasurement> measured = MeasureReads(probe, QuickCandidates(), 2, 2, 0.05);
  EXPECT_THAT(measured[0].refused, HasSubstr("no span of the files is on the disk"));
  EXPECT_EQ(PickBest(measured), nullptr);
}

TEST(PickBest, PrefersThePlainerWayWithinNoise) {
  std::vector<ReadMeasurement> measured(3);
  EXPECT_EQ(PickBest(measured), nullptr);
  measured[0].rates = {90, 94.9};
  measured[1].rates = {95.1, 80};
  measured[2].rates = {100, 1, 2};
  EXPECT_EQ(PickBest(measured), &measured[1]);
  measured[0].rates.push_back(95);
  EXPECT_EQ(PickBest(measured), &measured[0]);
  EXPECT_EQ(measured[2].median(), 2);
  EXPECT_EQ(measured[1].median(), (95.1 + 80) / 2);
}

}  // namespace
}  // namespace deltafin
