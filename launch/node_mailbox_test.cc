// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/node_mailbox.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <string>

#include "gradwire/base/process.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

bool is_readable(int fd) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, 0) == 1;
}

TEST(NodeMailbox, EventsComeInOrderAndTheDescriptorSaysWhetherThereIsOne) {
  NodeMailbox mailbox;
  EXPECT_FALSE(is_readable(mailbox.event_fd()));
  EXPECT_FALSE(mailbox.next().has_value());
  mailbox.publish(Notice{"first"});
  mailbox.publish(Failure{3, "second"});
  EXPECT_EQ(std::get<Notice>(*mailbox.next()).what, "first");
  EXPECT_TRUE(is_readable(mailbox.event_fd()));
  EXPECT_EQ(std::get<Failure>(*mailbox.next()).what, "second");
  EXPECT_FALSE(is_readable(mailbox.event_fd()));
}

TEST(NodeMailbox, ANewAttemptForgetsTheAlarmAndTheEndOfTheOneBefore) {
  NodeMailbox mailbox;
  mailbox.ranks_ended({NodeEnd::Kind::failed, 7, "rank 1 died"});
  mailbox.raise_alarm();
  EXPECT_EQ(mailbox.wait_for_own_end().own_end->exit_code, 7);
  EXPECT_TRUE(is_readable(mailbox.alarm_fd()));
  mailbox.begin_attempt();
  EXPECT_FALSE(mailbox.orders().own_end.has_value());
  EXPECT_FALSE(is_readable(mailbox.alarm_fd()));
}

TEST(NodeMailbox, WhoLeavesIsCalledAwayExceptDuringAnAttempt) {
  NodeMailbox mailbox;
  mailbox.check();
  mailbox.leave({NodeEnd::Kind::final, 130, "interrupted"});
  EXPECT_EQ(mailbox.orders().leaving->what, "interrupted");
  try {
    mailbox.pause(std::chrono::hours(1));
    ADD_FAILURE() << "nobody was called away";
  } catch (const LaunchError& error) {
    EXPECT_EQ(error.exit_code(), 130);
    EXPECT_EQ(error.what(), std::string("interrupted"));
  }
  mailbox.set_in_attempt(true);
  mailbox.check();
  mailbox.pause(Milliseconds(1));
}

TEST(NodeMailbox, WhoIsStoppedIsCalledAwayFromEverywhere) {
  NodeMailbox mailbox;
  mailbox.set_in_attempt(true);
  const Thread stopper("stopper", [&] { mailbox.stop(); });
  EXPECT_THROW(mailbox.pause(std::chrono::hours(1)), Stopped);
  EXPECT_THROW(mailbox.wait_for_own_end(), Stopped);
  EXPECT_THROW(mailbox.orders(), Stopped);
  EXPECT_THROW(mailbox.check(), Stopped);
}

}  // namespace
}  // namespace gradwire::launch
