// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch::rank_process_test {
namespace {

pid_t process_of(int pidfd) {
  std::ifstream info(concat("/proc/self/fdinfo/", pidfd));
  for (std::string word; info >> word;) {
    pid_t pid = -1;
    if (word == "Pid:" && info >> pid) return pid;
  }
  return -1;
}

class StartRank : public ::testing::Test {
 protected:
  RankProcess start(const std::vector<std::string>& command, const std::function<void(int)>& watch) {
    RankStart start{.name = "rank 0",
                    .command = command,
                    .environment = {},
                    .cpus = CpuSet(),
                    .stdin_fd = null_.get(),
                    .stdout_fd = STDERR_FILENO,
                    .stderr_fd = STDERR_FILENO,
                    .signal_mask = {}};
    sigemptyset(&start.signal_mask);
    return start_rank(start, watch);
  }
  const UniqueFd null_{::open("/dev/null", O_RDWR | O_CLOEXEC)};
};

// So that of two quick deaths the first is known.
TEST_F(StartRank, AProcessIsWatchedBeforeItsProgramRuns) {
  std::filesystem::path runs;
  const auto watch = [&](int pidfd) {
    runs = std::filesystem::read_symlink(concat("/proc/", process_of(pidfd), "/exe"));
  };
  const RankProcess process = start({"/bin/sh", "-c", "exit 7"}, watch);
  EXPECT_EQ(runs, std::filesystem::read_symlink("/proc/self/exe"));
  EXPECT_EQ(reap(process.pid).code, 7);
}

TEST_F(StartRank, AProcessThatCannotBeWatchedDoesNotRun) {
  const std::string file = concat(::testing::TempDir(), "/ran-", ::getpid());
  pid_t pid = -1;
  const auto watch = [&](int pidfd) {
    pid = process_of(pidfd);
    throw LaunchError(kLaunchFailedExit, "no");
  };
  EXPECT_THROW(start({"/bin/sh", "-c", concat("echo > ", file)}, watch), LaunchError);
  EXPECT_EQ(::kill(pid, 0), -1) << "it is reaped";
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace gradwire::launch::rank_process_test
