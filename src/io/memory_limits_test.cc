#include "io/memory_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace deltafin {
namespace {

constexpr char kMount2[] = "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

class MemoryLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "memory_limits_" + std::to_string(::getpid());
    std::filesystem::remove_all(root_);
    Write("proc/meminfo",
          "MemTotal:       65536000 kB\nMemFree: 1 kB\nMemAvailable: 32768000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + "/" + path).parent_path());
    std::ofstream(root_ + "/" + path) << text;
  }

  void ExpectLimit(uint64_t bytes, const std::string& group) {
    const MemoryLimits limits = ReadMemoryLimits(root_);
    EXPECT_EQ(limits.limit_bytes, bytes);
    EXPECT_THAT(limits.limited_by, testing::EndsWith(group));
  }

  std::string root_;
};

TEST_F(MemoryLimitsTest, PhysicalMemoryBindsWithoutCgroups) {
  const MemoryLimits limits = ReadMemoryLimits(root_);
  EXPECT_EQ(limits.physical_bytes, 65536000ull * 1024);
  EXPECT_EQ(limits.available_bytes, 32768000ull * 1024);
  EXPECT_EQ(limits.limit_bytes, limits.physical_bytes);
  EXPECT_EQ(limits.limited_by, "physical memory");
}

TEST_F(MemoryLimitsTest, ReadsWhatTheProcessUses) {
  EXPECT_EQ(ReadProcessMemory(root_).resident_bytes, 0u);  // no such file
  Write("proc/self/status",
        "Name:\tx\nVmPeak:\t 9000 kB\nVmSize:\t 8000 kB\nVmHWM:\t 700 kB\nVmRSS:\t 600 kB\n");
  const ProcessMemory memory = ReadProcessMemory(root_);
  EXPECT_EQ(memory.resident_bytes, 600u * 1024);
  EXPECT_EQ(memory.peak_resident_bytes, 700u * 1024);
  EXPECT_EQ(memory.virtual_bytes, 8000u * 1024);
}

// A limit on a parent binds although the process's own group has none.
TEST_F(MemoryLimitsTest, ParentOfACgroup2Binds) {
  Write("proc/self/cgroup", "0::/user/app\n");
  Write("proc/self/mountinfo", kMount2);
  Write("sys/fs/cgroup/user/memory.max", "8589934592\n");
  Write("sys/fs/cgroup/user/app/memory.max", "max\n");
  ExpectLimit(8589934592, "/user");
}

TEST_F(MemoryLimitsTest, AThrottleOfACgroup2Binds) {
  Write("proc/self/cgroup", "0::/user/app\n");
  Write("proc/self/mountinfo", kMount2);
  Write("sys/fs/cgroup/user/memory.max", "8589934592\n");
  Write("sys/fs/cgroup/user/app/memory.max", "max\n");
  Write("sys/fs/cgroup/user/app/memory.high", "4294967296\n");
  ExpectLimit(4294967296, "/user/app");
}

TEST_F(MemoryLimitsTest, Cgroup1Binds) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n");
  Write("proc/self/mountinfo", "36 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  Write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "2147483648\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  ExpectLimit(2147483648, "/docker/abc");
}

TEST_F(MemoryLimitsTest, RootCgroupOfAContainerBinds) {
  Write("proc/self/cgroup", "0::/\n");
  Write("proc/self/mountinfo", kMount2);
  Write("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(ReadMemoryLimits(root_).limit_bytes, 1073741824ull);
}

}  // namespace
}  // namespace deltafin
