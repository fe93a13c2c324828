// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/node_departure.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "launch/launch_error.h"

namespace gradwire::launch::node_departure_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const NodeDeparture::Time kBegin{std::chrono::hours(1)};

NodeDeparture departure(Deadline job_end = Deadline::never()) { return {1, seconds(10), job_end}; }

TEST(NodeDepartureTest, WhoDoesNotLeaveWaitsForEver) {
  const NodeDeparture node = departure();
  EXPECT_FALSE(node.is_leaving());
  EXPECT_EQ(node.exit_code(), 0);
  EXPECT_FALSE(node.is_late(kBegin + std::chrono::hours(1000)));
  EXPECT_FALSE(node.is_over(kBegin + std::chrono::hours(1000)));
  EXPECT_EQ(node.next().point(), Deadline::never().point());
}

TEST(NodeDepartureTest, ASignalIsToldAndTheOthersHaveTheHeartbeatTimeout) {
  NodeDeparture node = departure();
  const auto end = node.on_signal(SIGTERM, kBegin);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->kind, NodeEnd::Kind::final);
  EXPECT_EQ(end->exit_code, 128 + SIGTERM);
  EXPECT_EQ(end->what, "node 1 was interrupted by SIGTERM");
  EXPECT_TRUE(node.is_leaving());
  EXPECT_EQ(node.exit_code(), 128 + SIGTERM);
  EXPECT_EQ(node.next().point(), kBegin + seconds(10));
  EXPECT_FALSE(node.is_over(kBegin + milliseconds(9999)));
  EXPECT_TRUE(node.is_over(kBegin + seconds(10)));
}

TEST(NodeDepartureTest, OnlyAnotherSignalThanTheFirstEndsTheWait) {
  NodeDeparture node = departure();
  node.on_signal(SIGINT, kBegin);
  EXPECT_EQ(node.on_signal(SIGINT, kBegin + milliseconds(249)), std::nullopt);
  EXPECT_FALSE(node.is_over(kBegin + milliseconds(249))) << "one signal may arrive twice";
  EXPECT_EQ(node.on_signal(SIGTERM, kBegin + milliseconds(250)), std::nullopt);
  EXPECT_TRUE(node.is_over(kBegin + milliseconds(250)));
  EXPECT_EQ(node.exit_code(), 128 + SIGINT) << "that of the first";
}

TEST(NodeDepartureTest, TheTimeoutCountsWhileTheOthersAreWaitedFor) {
  const Deadline job_end = Deadline::after(seconds(60), kBegin);
  NodeDeparture node = departure(job_end);
  EXPECT_FALSE(node.is_late(kBegin + milliseconds(59'999)));
  EXPECT_TRUE(node.is_late(kBegin + seconds(60)));
  EXPECT_EQ(node.next().point(), job_end.point());
  node.attempt_begins(kBegin);
  EXPECT_FALSE(node.is_late(kBegin + seconds(60))) << "the ranks have a watch of their own";
  EXPECT_EQ(node.next().point(), Deadline::never().point());
  node.meets_again();
  EXPECT_TRUE(node.is_late(kBegin + seconds(60)));
  const NodeEnd end = node.on_timeout(kBegin + seconds(60));
  EXPECT_EQ(end.kind, NodeEnd::Kind::final);
  EXPECT_EQ(end.exit_code, kTimeoutExit);
  EXPECT_EQ(end.what, "--timeout passed on node 1");
  EXPECT_FALSE(node.is_late(kBegin + seconds(60))) << "the node leaves already";
  EXPECT_EQ(node.next().point(), kBegin + seconds(70));
}

TEST(NodeDepartureTest, AnAttemptThatBeganBeforeTheOthersHeardGivesThemTheTimeAgain) {
  NodeDeparture node = departure();
  node.on_signal(SIGINT, kBegin);
  node.attempt_begins(kBegin + seconds(9));
  EXPECT_FALSE(node.is_over(kBegin + seconds(10)));
  EXPECT_TRUE(node.is_over(kBegin + seconds(19)));
}

TEST(NodeDepartureTest, WhoseFrontHasDiedWaitsForNobody) {
  NodeDeparture node = departure(Deadline::after(seconds(60), kBegin));
  node.on_front_death(kBegin);
  EXPECT_EQ(node.exit_code(), 128 + SIGKILL);
  EXPECT_TRUE(node.is_over(kBegin));
  EXPECT_FALSE(node.is_late(kBegin + seconds(60)));
  EXPECT_EQ(node.on_signal(SIGINT, kBegin), std::nullopt) << "nobody is told";
}

}  // namespace
}  // namespace gradwire::launch::node_departure_test
