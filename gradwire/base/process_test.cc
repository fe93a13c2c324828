// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/process.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "gradwire/base/error.h"

namespace gradwire::process_test {
namespace {

int run_in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(OwnerProcessTest, IsTheProcessThatMadeIt) {
  const OwnerProcess owner;
  EXPECT_TRUE(owner.is_current());
  EXPECT_NO_THROW(owner.require_current("this"));
}

TEST(OwnerProcessTest, AForkedChildIsRefusedWithBothProcessesNamed) {
  const OwnerProcess owner;
  const std::string parent = std::to_string(::getpid());
  const int result = run_in_child([&] {
    if (owner.is_current()) return 1;
    if (!OwnerProcess().is_current()) return 2;
    try {
      owner.require_current("this group");
      return 3;
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      const bool named = text.find(parent) != std::string::npos &&
                         text.find(std::to_string(::getpid())) != std::string::npos &&
                         text.find("this group") != std::string::npos;
      return named ? 0 : 4;
    }
  });
  EXPECT_EQ(result, 0);
}

TEST(ThreadTest, RunsUnderItsNameAndIsJoinedAtTheEnd) {
  std::array<char, 16> name{};
  std::atomic<bool> done{false};
  {
    const Thread thread("a name that is far too long", [&] {
      ::pthread_getname_np(::pthread_self(), name.data(), name.size());
      done = true;
    });
  }
  EXPECT_TRUE(done);
  EXPECT_STREQ(name.data(), "a name that is ");
}

TEST(ThreadTest, JoinTwiceMoveAndAssign) {
  std::atomic<int> runs{0};
  Thread thread("first", [&] { ++runs; });
  EXPECT_TRUE(thread.joinable());
  thread.join();
  thread.join();
  EXPECT_FALSE(thread.joinable());
  thread = Thread("second", [&] { ++runs; });
  thread = Thread("third", [&] { ++runs; });  // joins the second first
  EXPECT_GE(runs, 2);
  const Thread moved = std::move(thread);
  EXPECT_TRUE(moved.joinable());
}

TEST(ThreadTest, AForkedChildLetsItGo) {
  std::atomic<bool> stop{false};
  auto thread = std::make_unique<Thread>("busy", [&] {
    while (!stop) ::usleep(1000);
  });
  EXPECT_EQ(run_in_child([&] {
              thread.reset();  // joining would wait for ever: the child has no such thread
              return 7;
            }),
            7);
  EXPECT_TRUE(thread->joinable());
  stop = true;
}

TEST(ThreadTest, AThreadThatTheMachineRefusesIsAResourceErrorThatNamesTheThread) {
  EXPECT_EQ(run_in_child([] {
              constexpr uid_t kNobody = 65534;  // the limit does not hold for root
              if (::geteuid() == 0 && ::setuid(kNobody) != 0) return 1;
              const rlimit none{0, 0};
              if (::setrlimit(RLIMIT_NPROC, &none) != 0) return 2;
              bool ran = false;
              try {
                const Thread thread("mover", [&] { ran = true; });
                return 3;
              } catch (const ResourceError& error) {
                return std::string(error.what()).find("mover") != std::string::npos && !ran ? 0 : 4;
              }
            }),
            0);
}

}  // namespace
}  // namespace gradwire::process_test
