// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: a process that runs is never taken for dead; one that ended is known as soon as it has, reaped or not; what
// cannot be seen counts as alive.
#include "gradwire/base/process_identity.h"
#include "tests/support/no_descriptors.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

namespace gradwire::process_identity_test {
namespace {

TEST(ProcessIdentity, ThisProcessIsAliveAndItsNamesDiffer) {
  const std::string one = process_identity();
  EXPECT_TRUE(may_be_alive(one));
  EXPECT_NE(one, process_identity());
  EXPECT_EQ(describe_process(one), "process " + std::to_string(::getpid()));
  EXPECT_EQ(number_of_process(one), ::getpid());
}

TEST(ProcessIdentity, AProcessThatEndedIsDeadBeforeItsParentHasReapedIt) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string name = process_identity();
    if (::write(ends[1], name.data(), name.size()) < 0) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  std::array<char, 256> buffer{};
  ASSERT_GT(::read(ends[0], buffer.data(), buffer.size() - 1), 0);
  const std::string name = buffer.data();
  EXPECT_TRUE(may_be_alive(name));
  ::kill(child, SIGKILL);
  siginfo_t about{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &about, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(may_be_alive(name)) << "a zombie runs no more";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(may_be_alive(name));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(ProcessIdentity, WhatCannotBeSeenFromHereMayBeAlive) {
  EXPECT_TRUE(may_be_alive(""));
  EXPECT_TRUE(may_be_alive("no sense"));
  EXPECT_TRUE(may_be_alive("another-boot/pid:[1] 1 1 0"));
  EXPECT_EQ(describe_process(""), "process of unknown number");
  for (const char* name : {"", "boot", "boot text 7"}) EXPECT_EQ(number_of_process(name), 0) << name;
}

// A process with no descriptor left cannot look, and knows nothing of the others' deaths.
TEST(ProcessIdentity, WithoutDescriptorsNobodyIsTakenForDead) {
  const std::string name = process_identity();
  ASSERT_TRUE(may_be_alive(name));
  bool alive = false;
  std::string later;
  {
    const test_support::NoDescriptors none;
    alive = may_be_alive(name);
    later = process_identity();
  }
  EXPECT_TRUE(alive);
  EXPECT_TRUE(may_be_alive(later)) << later;
  EXPECT_EQ(number_of_process(later), ::getpid());
}

}  // namespace
}  // namespace gradwire::process_identity_test
