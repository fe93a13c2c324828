// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: memory files have no name and cannot be shrunk; a refusal is an error before any page is touched;
// signals
// do not keep pages from being taken; control-group limits are found wherever they stand in the path.
#include "gradwire/backend/shm/memory_file_internal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "gradwire/base/error.h"
#include "tests/support/temporary_folder.h"

namespace {

// What one call of posix_fallocate() may take before it is interrupted: a kernel that gives everything back at a
// signal, under a timer that fires so often. Zero: the kernel's own.
std::size_t bytes_between_signals = 0;
std::size_t calls_of_fallocate = 0;

}  // namespace

// In place of the C library's for this program.
extern "C" int posix_fallocate(int fd, off_t begin, off_t bytes) {
  ++calls_of_fallocate;
  if (bytes_between_signals > 0 && static_cast<std::size_t>(bytes) > bytes_between_signals) {
    return calls_of_fallocate < 10'000 ? EINTR : EDEADLK;
  }
  return ::fallocate(fd, 0, begin, bytes) == 0 ? 0 : errno;
}

namespace gradwire::shm {
namespace {

namespace fs = std::filesystem;

class MemoryFileTest : public testing::Test {
 protected:
  void TearDown() override {
    bytes_between_signals = 0;
    ::unsetenv("GRADWIRE_SHM_FOLDER");
    if (mounted_) ::umount(folder_.c_str());
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

  const test_support::TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
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

TEST_F(MemoryFileTest, SignalsThatKeepInterruptingDoNotStopPagesFromBeingTaken) {
  constexpr std::size_t kBytes = (std::size_t{24} << 20) + 4096;
  const UniqueFd fd = make_memory_file(kBytes);
  bytes_between_signals = std::size_t{1} << 20;
  calls_of_fallocate = 0;
  reserve_pages(fd.get(), 0, kBytes);
  EXPECT_GT(calls_of_fallocate, 24U);
  struct stat about {};
  ASSERT_EQ(::fstat(fd.get(), &about), 0);
  EXPECT_GE(static_cast<std::size_t>(about.st_blocks) * 512, kBytes) << "some pages are not there";
}

TEST_F(MemoryFileTest, WhatAnotherProcessSentIsLookedAtBeforeItIsMapped) {
  const UniqueFd good = make_memory_file(8192);
  EXPECT_EQ(why_not_mapped(good.get(), 8192), "");
  EXPECT_NE(why_not_mapped(good.get(), 8193).find("holds 8192 bytes where 8193"), std::string::npos);
  const UniqueFd open(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), 8192), 0);
  EXPECT_NE(why_not_mapped(open.get(), 8192).find("not sealed"), std::string::npos);
  const UniqueFd unsealable(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealable.get(), 8192), 0);
  EXPECT_NE(why_not_mapped(unsealable.get(), 8192).find("not sealed"), std::string::npos);
  ::setenv("GRADWIRE_SHM_FOLDER", folder_.c_str(), 1);
  const UniqueFd unlinked = make_memory_file(8192);
  EXPECT_EQ(why_not_mapped(unlinked.get(), 8192), "");
  write("named", std::string(8192, ' '));
  const UniqueFd named(::open((folder_ / "named").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_NE(why_not_mapped(named.get(), 8192).find("has a name"), std::string::npos);
  const UniqueFd folder(::open(folder_.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_NE(why_not_mapped(folder.get(), 0).find("no file"), std::string::npos);
  EXPECT_NE(why_not_mapped(-1, 0).find("cannot be looked at"), std::string::npos);
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
