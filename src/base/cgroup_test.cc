#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace deltafin {
namespace {

class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "cgroup_test_" + std::to_string(getpid());
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

constexpr double kNone = std::numeric_limits<double>::infinity();

TEST_F(CgroupTest, NoControlGroupsMeansNoLimit) {
  EXPECT_TRUE(CgroupFolders("cpu", root_).empty());
  EXPECT_EQ(CgroupCpuQuota(root_), kNone);
}

TEST_F(CgroupTest, Version2TakesTheLeastOnThePath) {
  Write("/proc/self/cgroup", "0::/user.slice/job\n");
  Write("/proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), kNone);
  Write("/sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 2.5);
  Write("/sys/fs/cgroup/user.slice/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 0.5);
  Write("/sys/fs/cgroup/cpu.max", "10000 100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 0.1);
}

TEST_F(CgroupTest, Version1FindsItsControllerAmongOthers) {
  Write("/proc/self/cgroup", "4:memory:/m\n3:cpuset:/s\n2:cpu,cpuacct:/a/b\n0::/\n");
  Write("/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n");
  Write("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1000\n");  // not the CPU controller's
  Write("/sys/fs/cgroup/cpuset/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), kNone);
  Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "300000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 3.0);
}

TEST_F(CgroupTest, AContainerSeesOnlyItsPartOfTheHierarchy) {
  Write("/proc/self/cgroup", "5:cpu:/docker/abc\n");
  Write("/proc/self/mountinfo", "33 31 0:30 /docker/abc /cg\\040roup rw - cgroup cgroup rw,cpu\n");
  Write("/cg roup/cpu.cfs_quota_us", "150000\n");
  Write("/cg roup/cpu.cfs_period_us", "100000\n");
  const std::vector<CgroupFolder> folders = CgroupFolders("cpu", root_);
  ASSERT_EQ(folders.size(), 1u);
  EXPECT_EQ(folders[0].path, root_ + "/cg roup");
  EXPECT_EQ(CgroupCpuQuota(root_), 1.5);
}

TEST_F(CgroupTest, AGroupOutsideTheMountFallsBackToTheMountPoint) {
  Write("/proc/self/cgroup", "0::/../other\n");
  Write("/proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 2.0);
}

}  // namespace
}  // namespace deltafin
