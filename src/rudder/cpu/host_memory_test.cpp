#include "rudder/cpu/host_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace rudder::cpu {
namespace {

class HostMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "host_memory_" + std::to_string(getpid());
    write("/proc/meminfo", "MemTotal:       32000 kB\nMemFree:  1 kB\nMemAvailable:   1000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(HostMemory, WithoutGroupsItIsWhatTheMachineHas) {
  EXPECT_EQ(available_host_memory(root_), 1000 * 1024);
  EXPECT_EQ(available_host_memory(root_ + "/nowhere"), 0);
}

TEST_F(HostMemory, AGroupOrItsParentBoundsIt) {
  write("/proc/self/cgroup", "0::/a/b\n");
  const std::string group = "/sys/fs/cgroup";
  write(group + "/a/b/memory.max", "max\n");
  write(group + "/a/b/memory.current", "5000\n");
  EXPECT_EQ(available_host_memory(root_), 1000 * 1024);
  write(group + "/a/memory.max", "600000\n");
  write(group + "/a/memory.current", "500000\n");
  EXPECT_EQ(available_host_memory(root_), 100000);
  write(group + "/a/memory.stat", "anon 400000\ninactive_file 50000\nslab 3\n");
  EXPECT_EQ(available_host_memory(root_), 150000);
  write(group + "/a/memory.current", "700000\n");
  EXPECT_EQ(available_host_memory(root_), 0);
}

TEST_F(HostMemory, AVersion1GroupBoundsIt) {
  write("/proc/self/cgroup", "9:cpu:/x\n8:memory:/docker/1\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");  // the group, as seen inside
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  write("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1000\n");
  EXPECT_EQ(available_host_memory(root_), 201000);
}

TEST(HostMemoryHere, IsPositive) {
  EXPECT_GT(available_host_memory(), 0);
}

// As in a root that nobody mounted anything in.
TEST(HostMemoryHere, IsPositiveWithoutProc) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may change its root";
  const std::string root = ::testing::TempDir() + "without_proc_" + std::to_string(getpid());
  std::filesystem::create_directories(root);
  const pid_t child = fork();
  if (child == 0) {
    const bool is_there = chroot(root.c_str()) == 0 && chdir("/") == 0;
    _exit(is_there && available_host_memory() > 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  std::filesystem::remove_all(root);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace rudder::cpu
