// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that the rendezvous folder survives programs that clean /tmp.
#include "launch/rendezvous_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gradwire/base/deadline.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

namespace fs = std::filesystem;

// As old as what systemd-tmpfiles and tmpreaper remove.
void age(const std::string& path) {
  const timespec then[2] = {{.tv_sec = 86400, .tv_nsec = 0}, {.tv_sec = 86400, .tv_nsec = 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), then, 0), 0);
}

bool is_old(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mtim.tv_sec <= 86400 || status.st_atim.tv_sec <= 86400;
}

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

TEST(RendezvousFolder, IsLockedAgainstCleanersThatAskForALock) {
  const RendezvousFolder folder;
  const UniqueFd cleaner(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_NE(::flock(cleaner.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(errno, EWOULDBLOCK);
}

TEST(RendezvousFolder, IsKeptYoung) {
  RendezvousFolder folder;
  const std::string file = folder.store_file(0);
  std::ofstream(file) << "store";
  age(file);
  age(folder.path());
  const FolderUpkeep upkeep(folder, Milliseconds(1));
  const Deadline guard = Deadline::after(std::chrono::minutes(1));
  while ((is_old(file) || is_old(folder.path())) && !guard.expired()) std::this_thread::yield();
  EXPECT_FALSE(is_old(file));
  EXPECT_FALSE(is_old(folder.path()));
}

TEST(RendezvousFolder, IsMadeAgainWhenSomebodyRemovedIt) {
  RendezvousFolder folder;
  fs::remove_all(folder.path());
  folder.refresh();
  EXPECT_EQ(fs::path(folder.store_file(1)).parent_path(), folder.path());
  EXPECT_EQ(mode_of(folder.path()), 0700U);
  fs::remove_all(folder.path());
  EXPECT_EQ(mode_of(folder.keep_secret("s")), 0600U);
  EXPECT_EQ(mode_of(folder.path()), 0700U);
  const UniqueFd cleaner(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_NE(::flock(cleaner.get(), LOCK_EX | LOCK_NB), 0) << "the new one is locked too";
}

TEST(RendezvousFolder, WhatTookItsNameIsNotUsed) {
  RendezvousFolder folder;
  fs::remove_all(folder.path());
  fs::create_directory(folder.path());
  fs::permissions(folder.path(), fs::perms::all);
  EXPECT_THROW(folder.store_file(1), LaunchError);
  fs::remove(folder.path());
  fs::create_directory_symlink("/tmp", folder.path());
  EXPECT_THROW(folder.store_file(1), LaunchError);
  fs::remove(folder.path());
}

}  // namespace
}  // namespace gradwire::launch
