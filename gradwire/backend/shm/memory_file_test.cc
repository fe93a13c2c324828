// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: memory files have no name and cannot be shrunk; a refusal is an error before any page is touched;
// control-group limits are found wherever they stand in the path.
#include "gradwire/backend/shm/memory_file_internal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "gradwire/base/error.h"

namespace gradwire::shm {
namespace {

namespace fs = std::filesystem;

class MemoryFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "gradwire-memory-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    ::unsetenv("GRADWIRE_SHM_FOLDER");
    if (mounted_) ::umount(folder_.c_str());
    fs::remove_all(folder_);
  }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  std::size_t links_of(int fd) {
    struct stat about {};
    EXPECT_EQ(::fstat(fd, &about), 0);
    return about.st_nlink;
  }
  bool mount_small_tmpfs() {
    mounted_ = ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=1m") == 0;
    return mounted_;
  }

  fs::path folder_;
  bool mounted_ = false;
};

TEST_F(MemoryFileTest, AMemfdHasNoNameAndCannotBeShrunk) {
  const UniqueFd fd = make_memory_file(1 << 20);
  EXPECT_EQ(links_of(fd.get()), 0U);
  EXPECT_NE(::ftruncate(fd.get(), 4096), 0) << "a peer that shrinks it would send the others a SIGBUS";
}

TEST_F(MemoryFileTest, AFolderGivesAnUnlinkedFile) {
  ::setenv("GRADWIRE_SHM_FOLDER", folder_.c_str(), 1);
  const UniqueFd fd = make_memory_file(1 << 16);
  EXPECT_EQ(links_of(fd.get()), 0U);
  EXPECT_TRUE(fs::is_empty(folder_));
  Mapping memory = Mapping::of_file(fd.get(), 1 << 16);
  reserve_pages(fd.get(), 0, 1 << 16);
  std::memset(memory.data(), 7, 1 << 16);
  EXPECT_EQ(memory.data()[(1 << 16) - 1], std::byte{7});
}

TEST_F(MemoryFileTest, AFolderThatIsNotThereIsAClearError) {
  ::setenv("GRADWIRE_SHM_FOLDER", "/nowhere/at/all", 1);
  try {
    make_memory_file(4096);
    FAIL() << "made memory in a folder that is not there";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere/at/all"), std::string::npos) << error.what();
  }
}

TEST_F(MemoryFileTest, AFullFileSystemRefusesBeforeAnythingIsTouched) {
  if (!mount_small_tmpfs()) GTEST_SKIP() << "cannot mount a tmpfs here (" << std::strerror(errno) << ")";
  ::setenv("GRADWIRE_SHM_FOLDER", folder_.c_str(), 1);
  const UniqueFd fd = make_memory_file(std::size_t{4} << 20);
  try {
    reserve_pages(fd.get(), 0, std::size_t{4} << 20);
    FAIL() << "4 MiB fitted into a tmpfs of 1 MiB";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find("4194304 bytes"), std::string::npos) << error.what();
  }
}

TEST_F(MemoryFileTest, FindsTheSmallestLimitUpTheUnifiedPath) {
  write("membership", "0::/job/step\n");
  write("cgroup/memory.max", "max\n");
  write("cgroup/job/memory.max", "1000000\n");
  write("cgroup/job/step/memory.max", "max\n");
  EXPECT_EQ(control_group_limit(folder_ / "cgroup", folder_ / "membership"), 1000000U);
}

TEST_F(MemoryFileTest, FindsTheLimitOfTheOldHierarchy) {
  write("membership", "11:cpu:/x\n7:memory:/job\n");
  write("cgroup/memory/job/memory.limit_in_bytes", "2000000\n");
  EXPECT_EQ(control_group_limit(folder_ / "cgroup", folder_ / "membership"), 2000000U);
}

TEST_F(MemoryFileTest, MoreThanTheMachineHasIsRefusedBeforeAnythingIsTaken) {
  write("meminfo", "MemTotal: 100 kB\nMemAvailable:      30 kB\nSwapFree:   5 kB\n");
  EXPECT_EQ(available_memory(folder_ / "meminfo"), 35U * 1024);
  EXPECT_EQ(available_memory(folder_ / "none"), std::nullopt);
  EXPECT_THROW(make_memory_file(std::size_t{1} << 50), ResourceError);
}

TEST_F(MemoryFileTest, NoLimitIsNoLimit) {
  write("membership", "0::/\n");
  write("cgroup/memory.max", "max\n");
  EXPECT_EQ(control_group_limit(folder_ / "cgroup", folder_ / "membership"), std::nullopt);
  EXPECT_EQ(control_group_limit(folder_ / "none", folder_ / "none"), std::nullopt);
}

}  // namespace
}  // namespace gradwire::shm
