// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the launchers' records, and the verdict on the ends of an attempt.
#include "launch/node_records.h"

#include <gtest/gtest.h>

#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

using Kind = NodeEnd::Kind;

Plan plan_of_three(int attempt, int max_restarts) {
  return {"job", attempt, max_restarts, 1234, {{"a", "x", 1, 2, 0}, {"b \xff\"", "y", 2, 3, 0}, {"c", "z", 3, 1, 0}}};
}

TEST(NodeRecords, RanksAreCountedThroughTheNodes) {
  const Plan plan = plan_of_three(0, 0);
  EXPECT_EQ(plan.world(), 6);
  EXPECT_EQ(plan.first_rank(0), 0);
  EXPECT_EQ(plan.first_rank(1), 2);
  EXPECT_EQ(plan.first_rank(2), 5);
  EXPECT_EQ(plan.name_of(0), "node 0 (a, ranks 0, 1)");
  EXPECT_EQ(plan.name_of(2), "node 2 (c, rank 5)");
}

TEST(NodeRecords, ComeBackAsTheyWent) {
  const Plan plan = decode_plan(encode(plan_of_three(3, 4)));
  EXPECT_EQ(plan.job_id, "job");
  EXPECT_EQ(plan.attempt, 3);
  EXPECT_EQ(plan.max_restarts, 4);
  EXPECT_EQ(plan.master_port, 1234);
  ASSERT_EQ(plan.nodes.size(), 3U);
  EXPECT_EQ(plan.nodes[1].launcher, "y");
  EXPECT_EQ(plan.nodes[1].pid, 2);
  EXPECT_EQ(plan.nodes[1].ranks, 3);
  EXPECT_FALSE(plan.watched);
  Plan watched = plan;
  watched.watched = true;
  EXPECT_TRUE(decode_plan(encode(watched)).watched);
  EXPECT_FALSE(decode_plan(R"({"job_id":"j","attempt":0,"max_restarts":0,"master_port":1,"nodes":[]})").watched)
      << "a launcher that knows nothing of it";
  const NodeEnd end = decode_end(encode(NodeEnd{Kind::killed, 139, "rank 1 \"died\"", 1700000000123}));
  EXPECT_EQ(end.kind, Kind::killed);
  EXPECT_EQ(end.exit_code, 139);
  EXPECT_EQ(end.what, "rank 1 \"died\"");
  EXPECT_EQ(end.time, 1700000000123);
  const Verdict verdict = decode_verdict(encode(Verdict{Verdict::Kind::restart, 1, "why"}));
  EXPECT_EQ(verdict.kind, Verdict::Kind::restart);
  EXPECT_EQ(verdict.what, "why");
  const JobRecord job = decode_job(encode(JobRecord{7, "1.2", "id", 5}));
  EXPECT_EQ(job.protocol, 7);
  EXPECT_EQ(job.version, "1.2");
  EXPECT_EQ(job.job_id, "id");
  EXPECT_EQ(job.nodes, 5);
}

TEST(NodeRecords, WhatIsNoneIsRefused) {
  for (const char* text : {"", "{", "[]", "{}", "{\"kind\": 99, \"exit_code\": 0, \"what\": \"\"}",
                           "{\"kind\": \"x\", \"exit_code\": 0, \"what\": \"\"}"}) {
    EXPECT_THROW(decode_end(text), LaunchError) << text;
    EXPECT_THROW(decode_plan(text), LaunchError) << text;
    EXPECT_THROW(decode_verdict(text), LaunchError) << text;
    EXPECT_THROW(decode_node(text), LaunchError) << text;
    EXPECT_THROW(decode_job(text), LaunchError) << text;
  }
  EXPECT_EQ(decode_job("{\"protocol\": 2, \"version\": \"9\"}").protocol, 2)
      << "of another version only that is certain";
}

TEST(Judge, AllGoodIsDone) { EXPECT_EQ(judge(plan_of_three(0, 3), {{}, {}, {}}).kind, Verdict::Kind::done); }

TEST(Judge, TheEndThatExplainsTheOthersIsNamed) {
  const NodeEnd failed{Kind::failed, 1, "peer error"};
  const NodeEnd killed{Kind::killed, 137, "killed"};
  const NodeEnd vanished{Kind::vanished, kHostLostExit, "vanished"};
  const NodeEnd interrupted{Kind::final, 130, "interrupted"};
  const NodeEnd stopped{Kind::stopped, 143, ""};
  const auto what = [](std::vector<NodeEnd> ends) { return judge(plan_of_three(0, 0), ends).what; };
  const NodeEnd followed{Kind::followed, 134, "followed", 1};
  EXPECT_EQ(what({followed, {}, stopped}), "followed");
  EXPECT_EQ(what({followed, failed, stopped}), "peer error");
  EXPECT_EQ(what({failed, {}, stopped}), "peer error");
  EXPECT_EQ(what({failed, stopped, killed}), "killed");
  EXPECT_EQ(what({failed, vanished, killed}), "vanished");
  EXPECT_EQ(what({interrupted, vanished, killed}), "interrupted");
  EXPECT_EQ(judge(plan_of_three(0, 0), {failed, killed, {}}).exit_code, 137);
}

TEST(Judge, OfTwoEndsOfOneKindTheEarlierIsNamed) {
  const NodeEnd earlier{Kind::failed, 7, "earlier", 1000};
  const NodeEnd later{Kind::failed, 1, "later", 1001};
  EXPECT_EQ(judge(plan_of_three(0, 0), {later, earlier, later}).what, "earlier");
  EXPECT_EQ(judge(plan_of_three(0, 0), {earlier, later, {}}).what, "earlier");
  EXPECT_EQ(judge(plan_of_three(0, 0), {later, {Kind::killed, 139, "killed", 2000}, earlier}).what, "killed");
}

TEST(Judge, RestartsAreCounted) {
  const std::vector<NodeEnd> ends = {{Kind::failed, 3, "why"}, {}, {}};
  EXPECT_EQ(judge(plan_of_three(0, 0), ends).kind, Verdict::Kind::end);
  EXPECT_EQ(judge(plan_of_three(0, 2), ends).kind, Verdict::Kind::restart);
  EXPECT_EQ(judge(plan_of_three(1, 2), ends).what, "why; all ranks start again (restart 2 of 2)");
  EXPECT_EQ(judge(plan_of_three(2, 2), ends).kind, Verdict::Kind::end);
  EXPECT_EQ(judge(plan_of_three(2, 2), ends).what, "why; all 2 restarts are used up");
  EXPECT_EQ(judge(plan_of_three(0, 2), {{Kind::final, 130, "^C"}, {}, {}}).kind, Verdict::Kind::end);
}

}  // namespace
}  // namespace gradwire::launch
