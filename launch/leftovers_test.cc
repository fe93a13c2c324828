// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/leftovers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gradwire::launch {
namespace {

using std::chrono::milliseconds;

// Processes that were left are children of this one, which a later test must not inherit.
class LeftoversTest : public ::testing::Test {
 protected:
  ~LeftoversTest() override { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }

  static pid_t start_child() {
    const pid_t pid = ::fork();
    if (pid == 0) {
      while (true) ::pause();
    }
    return pid;
  }
  static void wait_for_end(pid_t pid) {
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  }
  static bool runs(pid_t pid) {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }
  static bool nobody(pid_t) { return false; }

  const Leftovers::Time begin_{std::chrono::hours(1)};
};

TEST_F(LeftoversTest, HaveATimeToExitAndAreKilledThen) {
  Leftovers leftovers;
  const pid_t child = start_child();
  leftovers.begin(/*patient=*/true, begin_);
  EXPECT_TRUE(leftovers.clear(begin_));
  EXPECT_EQ(leftovers.next(begin_), milliseconds(300));
  EXPECT_TRUE(leftovers.clear(begin_ + milliseconds(299)));
  EXPECT_TRUE(runs(child));
  EXPECT_TRUE(leftovers.clear(begin_ + milliseconds(300)));
  wait_for_end(child);
  EXPECT_TRUE(leftovers.clear(begin_ + milliseconds(310))) << "a zombie is left";
  Leftovers::reap(nobody);
  EXPECT_FALSE(leftovers.clear(begin_ + milliseconds(320)));
  EXPECT_TRUE(leftovers.unkillable().empty());
}

TEST_F(LeftoversTest, WhoDoesNotGoIsToldOf) {
  Leftovers leftovers;
  const pid_t child = start_child();
  leftovers.begin(/*patient=*/false, begin_);
  EXPECT_TRUE(leftovers.clear(begin_)) << "nobody waits for the time to exit";
  wait_for_end(child);
  EXPECT_TRUE(leftovers.clear(begin_ + milliseconds(5299)));
  EXPECT_FALSE(leftovers.clear(begin_ + milliseconds(5300)));
  EXPECT_EQ(leftovers.unkillable(), std::vector<pid_t>{child});
  ::waitpid(child, nullptr, 0);
}

TEST_F(LeftoversTest, ChildrenThatWereThereBeforeAndThoseOfOthersAreLeftAlone) {
  const pid_t before = start_child();
  Leftovers leftovers;
  leftovers.begin(/*patient=*/false, begin_);
  EXPECT_FALSE(leftovers.clear(begin_));
  EXPECT_TRUE(runs(before));
  ::kill(before, SIGKILL);
  wait_for_end(before);
  Leftovers::reap([&](pid_t pid) { return pid == before; });
  EXPECT_EQ(::waitpid(before, nullptr, WNOHANG), before) << "it was reaped";
}

}  // namespace
}  // namespace gradwire::launch
