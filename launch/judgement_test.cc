// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the decisions of a launcher: each rule alone, and whole jobs whose launchers take turns in random order.
#include "launch/judgement.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/record_keys.h"

namespace gradwire::launch {
namespace {

using Phase = Position::Phase;
using Kind = NodeEnd::Kind;
using Keys = std::vector<std::string>;

constexpr Milliseconds kRendezvous{60000};
constexpr Milliseconds kHeartbeat{1000};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The point in time so many milliseconds after the beginning of a test.
Position::Time at(int milliseconds) { return Position::Time() + std::chrono::hours(1) + Milliseconds(milliseconds); }

NodeCoordinatorOptions options_of(int node, int max_restarts = 0, int nodes = 3) {
  NodeCoordinatorOptions options;
  options.nodes = nodes;
  options.node = node;
  options.ranks = 2;
  options.host = "head";
  options.port = 29400;
  options.max_restarts = max_restarts;
  options.rendezvous_timeout = kRendezvous;
  options.heartbeat_timeout = kHeartbeat;
  return options;
}

NodeRecord record_of(int node, int attempt = 0) {
  return {concat("host", node), concat("launcher", node), 100 + node, 2, attempt};
}

// One launcher that is told what it hears; what it does is kept by kind.
class Launcher {
 public:
  explicit Launcher(int node, int max_restarts = 0)
      : options(options_of(node, max_restarts)), position(first_position(options, record_of(node))) {}

  Phase hear(const Heard& heard) {
    Decision decision = decide(options, position, heard);
    position = std::move(decision.position);
    wait_for = decision.wait_for;
    puts.clear();
    told.clear();
    begins = stops = 0;
    for (const Action& action : decision.actions) {
      if (const auto* put = std::get_if<PutRecord>(&action)) puts[put->key] = put->value;
      if (const auto* tell = std::get_if<Tell>(&action)) told.push_back(tell->event);
      begins += std::holds_alternative<BeginAttempt>(action);
      stops += std::holds_alternative<StopRanks>(action);
    }
    return position.phase;
  }

  Keys put_keys() const {
    Keys keys;
    for (const auto& [key, value] : puts) keys.push_back(key);
    return keys;
  }
  template <class E>
  E told_one() const {
    if (told.size() == 1 && std::holds_alternative<E>(told[0])) return std::get<E>(told[0]);
    ADD_FAILURE() << "told " << told.size() << " events";
    return {};
  }

  NodeCoordinatorOptions options;
  Position position;
  std::string wait_for;
  std::map<std::string, std::string> puts;
  std::vector<NodeEvent> told;
  int begins = 0;
  int stops = 0;
};

Heard heard_at(int milliseconds) {
  Heard heard;
  heard.now = at(milliseconds);
  return heard;
}

Heard all_joined(int attempt_of_last = 0) {
  Heard heard = heard_at(0);
  heard.joined = {record_of(1), record_of(2, attempt_of_last)};
  heard.free_port = 1234;
  return heard;
}

Plan plan_of_job(int attempt = 0, int max_restarts = 0) {
  return {"launcher0", attempt, max_restarts, 1234, {record_of(0), record_of(1), record_of(2)}};
}

// Node 0 in an attempt.
Launcher running_zero(int max_restarts = 0) {
  Launcher zero(0, max_restarts);
  EXPECT_EQ(zero.hear(all_joined()), Phase::running);
  return zero;
}

// Another node in an attempt.
Launcher running_one(int max_restarts = 0) {
  Launcher one(1);
  Heard heard = heard_at(0);
  heard.plan = plan_of_job(0, max_restarts);
  EXPECT_EQ(one.hear(heard), Phase::running);
  return one;
}

// What node 0 hears in an attempt: the nodes' beats and what they have said of their ends.
Heard attempt_at(int milliseconds, std::vector<std::int64_t> beats, std::vector<std::optional<NodeEnd>> ends = {}) {
  Heard heard = heard_at(milliseconds);
  heard.beats = std::move(beats);
  heard.ends = std::move(ends);
  heard.ends.resize(3);
  return heard;
}

const NodeEnd kGood{};
const NodeEnd kFailed{Kind::failed, 7, "rank 1 died"};
const NodeEnd kStopped{Kind::stopped, 143, ""};
const NodeEnd kInterrupted{Kind::final, 130, "node 1 was interrupted"};

// --- interruptions

TEST(Interruptions, OfAllHostsLeaveEachHostsRanksTheirTime) {
  Launcher one = running_one();
  Heard heard = heard_at(10);
  heard.interrupted = true;
  heard.over_by_interruption = true;
  for (const int time : {10, 5000, 60000}) {
    heard.now = at(time);
    EXPECT_EQ(one.hear(heard), Phase::running);
    EXPECT_EQ(one.stops, 0) << "its ranks save a checkpoint";
    EXPECT_EQ(one.wait_for, next_key(0));
  }
  heard.over = true;
  one.hear(heard);
  EXPECT_EQ(one.stops, 1) << "a rank has failed after all";
}

TEST(Interruptions, OfOneHostStopTheRanksOfTheOthersAfterAMoment) {
  Launcher one = running_one();
  Heard heard = heard_at(10);
  heard.over_by_interruption = true;
  one.hear(heard);
  EXPECT_EQ(one.stops, 0) << "the signal may be on its way";
  heard.now = at(5000);
  one.hear(heard);
  EXPECT_EQ(one.stops, 1);
}

TEST(Interruptions, AreToldApartFromFailures) {
  for (const bool failed : {false, true}) {
    Launcher one = running_one();
    Heard heard = heard_at(10);
    heard.interrupted = true;
    heard.rank_failed = failed;
    heard.own_end = kInterrupted;
    one.hear(heard);
    EXPECT_EQ(one.puts[over_key(0)], failed ? "1" : kOverByInterruption);
  }
}

TEST(Losses, NodeZeroStopsItsRanksWhenItsStoreIsLost) {
  Launcher zero = running_zero();
  Heard heard = heard_at(10);
  heard.lost = Lost{"the address is gone"};
  EXPECT_EQ(zero.hear(heard), Phase::over);
  EXPECT_EQ(zero.stops, 1);
  EXPECT_EQ(zero.told_one<Failure>().exit_code, kLaunchFailedExit);
}

// --- gathering

TEST(Gathering, WaitsForThoseWhoAreAbsentAndSaysSoOnce) {
  Launcher zero(0);
  Heard heard = heard_at(0);
  heard.absent = {2};
  EXPECT_EQ(zero.hear(heard), Phase::gathering);
  EXPECT_EQ(zero.wait_for, join_key(0, 2));
  EXPECT_TRUE(zero.told.empty());
  heard.now = at(10000);
  zero.hear(heard);
  EXPECT_EQ(zero.told_one<Notice>().what, "waiting for node 2 of 3 to join");
  heard.now = at(30000);
  zero.hear(heard);
  EXPECT_TRUE(zero.told.empty());
}

TEST(Gathering, GivesUpAfterItsTimeAndTellsTheOthers) {
  Launcher zero(0);
  Heard heard = heard_at(0);
  heard.absent = {1, 2};
  zero.hear(heard);
  heard.now = at(60000);
  EXPECT_EQ(zero.hear(heard), Phase::leaving);
  EXPECT_EQ(zero.put_keys(), (Keys{bye_key(0), kQuitKey}));
  EXPECT_EQ(decode_end(zero.puts[kQuitKey]).kind, Kind::final);
  EXPECT_EQ(zero.hear(heard_at(60000)), Phase::over);
  EXPECT_EQ(zero.told_one<Failure>().exit_code, kHostsFailedExit);
  EXPECT_TRUE(contains(zero.told_one<Failure>().what, "nodes 1, 2 of 3 had not joined after 60 s"));
}

TEST(Gathering, BeginsWhenAllHaveJoinedWithTheHighestAttempt) {
  Launcher zero(0);
  EXPECT_EQ(zero.hear(all_joined(3)), Phase::running);
  EXPECT_EQ(zero.begins, 1);
  const Plan plan = decode_plan(zero.puts.at(plan_key(0)));
  EXPECT_EQ(plan.attempt, 3);
  EXPECT_EQ(plan.job_id, "launcher0") << "where the user named none";
  EXPECT_EQ(plan.master_port, 1234);
  EXPECT_EQ(plan.world(), 6);
  EXPECT_FALSE(plan.watched);
}

TEST(Gathering, ThePlanSaysWhetherNodeZeroIsWatched) {
  Launcher zero(0);
  zero.options.watched = true;
  EXPECT_EQ(zero.hear(all_joined()), Phase::running);
  EXPECT_TRUE(decode_plan(zero.puts.at(plan_key(0))).watched);
}

TEST(Gathering, WhoeverIsToldToLeaveTellsTheOthers) {
  for (const int node : {0, 1}) {
    Launcher launcher(node);
    Heard heard = heard_at(0);
    heard.absent = {2};
    heard.leaving = kInterrupted;
    EXPECT_EQ(launcher.hear(heard), Phase::leaving);
    EXPECT_EQ(decode_end(launcher.puts[kQuitKey]).what, kInterrupted.what);
    launcher.hear(heard_at(0));
    EXPECT_EQ(launcher.told_one<Failure>().exit_code, 130);
  }
}

TEST(Gathering, WhatAnotherNodeSaidEndsTheWaitForAll) {
  for (const int node : {0, 1}) {
    Launcher launcher(node);
    Heard heard = heard_at(0);
    heard.absent = {2};
    heard.quit = kInterrupted;
    EXPECT_EQ(launcher.hear(heard), Phase::leaving);
    EXPECT_EQ(launcher.put_keys(), Keys{bye_key(node)}) << "the first reason stays";
    launcher.hear(heard_at(0));
    EXPECT_EQ(launcher.told_one<Failure>().what, kInterrupted.what);
  }
}

TEST(Gathering, ARecordThatIsNoneEndsTheJob) {
  Launcher zero(0);
  Heard heard = heard_at(0);
  heard.problem = Failure{kHostsFailedExit, "no record"};
  EXPECT_EQ(zero.hear(heard), Phase::leaving);
  EXPECT_EQ(decode_end(zero.puts[kQuitKey]).what, "no record");
}

// --- joining

TEST(Joining, EachRoundIsJoinedOnce) {
  Launcher one(1);
  Heard heard = heard_at(0);
  EXPECT_EQ(one.hear(heard), Phase::joining);
  EXPECT_EQ(decode_node(one.puts.at(join_key(0, 1))).launcher, "launcher1");
  EXPECT_EQ(one.wait_for, plan_key(0));
  one.hear(heard);
  EXPECT_TRUE(one.puts.empty());
  heard.round = 1;
  one.hear(heard);
  EXPECT_EQ(one.put_keys(), Keys{join_key(1, 1)});
}

TEST(Joining, AnAttemptThatNamesThisLauncherBeginsOnce) {
  Launcher one = running_one();
  EXPECT_EQ(one.begins, 1);
  EXPECT_EQ(one.position.plan->first_rank(1), 2);
}

TEST(Joining, AnAttemptOfALauncherThatThisOneReplacesIsWaitedOut) {
  Launcher one(1);
  Heard heard = heard_at(0);
  heard.plan = plan_of_job();
  heard.plan->nodes[1].launcher = "the one before";
  EXPECT_EQ(one.hear(heard), Phase::joining);
  EXPECT_TRUE(one.puts.empty());
  EXPECT_EQ(one.wait_for, next_key(0)) << "the plan is there already: waiting for it would be no waiting";
}

TEST(Joining, GivesUpAfterItsTimeAndLeavesTheOthersAlone) {
  Launcher one(1);
  one.hear(heard_at(0));
  EXPECT_EQ(one.hear(heard_at(60000)), Phase::leaving);
  EXPECT_EQ(one.put_keys(), Keys{bye_key(1)});
  EXPECT_EQ(one.hear(heard_at(60000)), Phase::over);
  EXPECT_TRUE(contains(one.told_one<Failure>().what, "node 1 waited 60 s for all 3 nodes"));
}

// --- running

TEST(Running, AGoodEndStopsNobody) {
  Launcher one = running_one();
  Heard heard = heard_at(1);
  heard.own_end = kGood;
  one.hear(heard);
  EXPECT_EQ(one.put_keys(), Keys{end_key(0, 1)});
  EXPECT_EQ(one.stops, 0);
  one.hear(heard);
  EXPECT_TRUE(one.puts.empty()) << "said once";
}

TEST(Running, ABadEndStopsTheRanksOfAllNodes) {
  Launcher one = running_one();
  Heard heard = heard_at(1);
  heard.own_end = kFailed;
  one.hear(heard);
  EXPECT_EQ(one.put_keys(), (Keys{end_key(0, 1), over_key(0)}));
  Launcher zero = running_zero();
  Heard others = attempt_at(1, {1, 1, 1});
  others.over = true;
  EXPECT_EQ(zero.hear(others), Phase::running);
  EXPECT_EQ(zero.stops, 1);
}

TEST(Running, AFailedRankStopsTheOthersBeforeThoseOfItsNodeHaveEnded) {
  Launcher one = running_one();
  Heard heard = heard_at(1);
  heard.rank_failed = true;
  EXPECT_EQ(one.hear(heard), Phase::running);
  EXPECT_EQ(one.put_keys(), Keys{over_key(0)});
  heard.over = true;
  one.hear(heard);
  EXPECT_TRUE(one.puts.empty()) << "said once";
  heard.own_end = kFailed;
  one.hear(heard);
  EXPECT_EQ(decode_end(one.puts.at(end_key(0, 1))).kind, Kind::failed);
}

TEST(Running, OneThatEndedWellAndIsInterruptedThenSaysSo) {
  Launcher one = running_one();
  Heard heard = heard_at(1);
  heard.own_end = kGood;
  one.hear(heard);
  heard.leaving = kInterrupted;
  one.hear(heard);
  EXPECT_EQ(decode_end(one.puts.at(end_key(0, 1))).kind, Kind::final);
  one.hear(heard);
  EXPECT_TRUE(one.puts.empty());
  Launcher zero = running_zero();
  zero.hear(attempt_at(1, {1, 1, 1}, {std::nullopt, kGood, kGood}));
  Heard last = attempt_at(2, {1, 1, 1}, {std::nullopt, kInterrupted, kGood});
  last.own_end = kStopped;
  EXPECT_EQ(zero.hear(last), Phase::leaving);
  EXPECT_EQ(decode_verdict(zero.puts.at(next_key(0))).exit_code, 130);
}

TEST(Running, TheVerdictComesWithTheLastEnd) {
  Launcher zero = running_zero();
  Heard heard = attempt_at(1, {1, 1, 1}, {std::nullopt, kFailed, std::nullopt});
  heard.own_end = kStopped;
  EXPECT_EQ(zero.hear(heard), Phase::running);
  EXPECT_EQ(zero.hear(attempt_at(2, {2, 2, 2}, {std::nullopt, std::nullopt, kStopped})), Phase::leaving);
  const Verdict verdict = decode_verdict(zero.puts.at(next_key(0)));
  EXPECT_EQ(verdict.kind, Verdict::Kind::end);
  EXPECT_EQ(verdict.what, "rank 1 died");
}

// Node 0 looks as often as it does in a job, from `from` to `to`, and hears the same each time.
void look_again(Launcher& zero, int from, int to, const std::vector<std::int64_t>& beats) {
  for (int now = from; now <= to; now += 100) {
    zero.hear(attempt_at(now, beats));
    EXPECT_TRUE(zero.puts.empty()) << now << " ms";
  }
}

TEST(Running, ANodeWhoseBeatsStandStillHasVanished) {
  Launcher zero = running_zero();
  look_again(zero, 0, 800, {1, 1, 1});
  look_again(zero, 900, 1000, {2, 2, 1});  // not longer than the time
  zero.hear(attempt_at(1001, {3, 3, 1}));
  EXPECT_EQ(zero.put_keys(), (Keys{end_key(0, 2), over_key(0)}));
  const NodeEnd end = decode_end(zero.puts.at(end_key(0, 2)));
  EXPECT_EQ(end.kind, Kind::vanished);
  EXPECT_TRUE(contains(end.what, "node 2 (host2, ranks 4, 5) has not been heard of for 1 s")) << end.what;
  look_again(zero, 1100, 1900, {4, 3, 1});  // node 1 was heard of at 1001
  EXPECT_EQ(zero.position.gone, std::vector<int>{2});
}

// The store is node 0's: while its machine stands still, the beats of the others reach nobody.
TEST(Running, TheTimeInWhichNodeZeroStoodStillIsNoSilenceOfTheOthers) {
  Launcher zero = running_zero();
  look_again(zero, 0, 500, {1, 1, 1});
  zero.hear(attempt_at(60000, {1, 1, 1}));
  EXPECT_TRUE(zero.position.gone.empty()) << "heard of 500 ms before node 0 stood still; that is less than a second";
  look_again(zero, 60100, 60200, {1, 2, 1});
  // Of the minute a quarter of a second counts: node 2 has been silent for 500 + 250 ms at 60000.
  zero.hear(attempt_at(60251, {1, 2, 1}));
  EXPECT_EQ(zero.position.gone, std::vector<int>{2});
}

TEST(Running, ANodeThatHasEndedIsNotMissed) {
  Launcher zero = running_zero();
  zero.hear(attempt_at(0, {1, 1, 1}, {std::nullopt, kGood, kFailed}));
  zero.hear(attempt_at(5000, {1, 1, 1}, {std::nullopt, kGood, std::nullopt}));
  EXPECT_TRUE(zero.position.gone.empty());
}

TEST(Running, NodeZeroDoesNotMissItself) {
  Launcher zero = running_zero();
  look_again(zero, 0, 800, {1, 1, 1});
  look_again(zero, 900, 1700, {1, 2, 2});
  look_again(zero, 1800, 2600, {1, 3, 3});
  EXPECT_TRUE(zero.position.gone.empty());
}

TEST(Running, AVerdictIsTakenAfterTheOwnRanksHaveEnded) {
  Launcher one = running_one();
  Heard heard = heard_at(1);
  heard.next = Verdict{Verdict::Kind::end, 3, "why"};
  EXPECT_EQ(one.hear(heard), Phase::running);
  EXPECT_EQ(one.stops, 1);
  EXPECT_TRUE(one.told.empty());
  heard.own_end = kStopped;
  EXPECT_EQ(one.hear(heard), Phase::leaving);
  EXPECT_EQ(one.hear(heard_at(1)), Phase::over);
  EXPECT_EQ(one.told_one<Verdict>().exit_code, 3);
}

TEST(Running, ARestartPreparesTheNextAttempt) {
  Launcher zero = running_zero(1);
  Heard heard = attempt_at(1, {1, 1, 1}, {std::nullopt, kFailed, kStopped});
  heard.own_end = kStopped;
  EXPECT_EQ(zero.hear(heard), Phase::gathering);
  EXPECT_EQ(zero.puts.at(kRoundKey), "1");
  EXPECT_EQ(zero.told_one<Verdict>().kind, Verdict::Kind::restart);
  EXPECT_EQ(zero.position.self.attempt, 1);
  EXPECT_EQ(zero.hear(all_joined()), Phase::running);
  EXPECT_EQ(decode_plan(zero.puts.at(plan_key(1))).attempt, 1);

  Launcher one = running_one(1);
  Heard end = heard_at(1);
  end.own_end = kFailed;
  end.next = Verdict{Verdict::Kind::restart, 7, "again"};
  EXPECT_EQ(one.hear(end), Phase::joining);
  Heard next = heard_at(2);
  next.plan = plan_of_job();
  EXPECT_EQ(one.hear(next), Phase::joining) << "that attempt is over, though its plan is still there";
  EXPECT_TRUE(one.puts.empty());
  next.plan.reset();
  next.round = 1;
  one.hear(next);
  EXPECT_EQ(decode_node(one.puts.at(join_key(1, 1))).attempt, 1);
}

// --- node 0 is lost

Heard lost_at(int milliseconds) {
  Heard heard = heard_at(milliseconds);
  heard.lost = Lost{"connection broke"};
  return heard;
}

TEST(NodeZeroLost, WhileWaitingEndsTheJob) {
  Launcher one(1);
  EXPECT_EQ(one.hear(lost_at(0)), Phase::over);
  EXPECT_EQ(one.told_one<Failure>().exit_code, kHostLostExit);
  EXPECT_TRUE(
      contains(one.told_one<Failure>().what, "node 0 at head:29400 has not answered for 1 s (connection broke)"));
}

TEST(NodeZeroLost, ToAnotherGradwireRunItWasReplaced) {
  Launcher one = running_one();
  Heard heard = heard_at(1);
  heard.lost = Lost{"another gradwire-run has taken its place", true};
  EXPECT_EQ(one.hear(heard), Phase::orphaned);
  EXPECT_EQ(one.stops, 1);
  Heard ended = heard_at(2);
  ended.own_end = kStopped;
  EXPECT_EQ(one.hear(ended), Phase::over);
  EXPECT_EQ(one.told_one<Failure>().what,
            "node 0 (host0, ranks 0, 1) has ended: another gradwire-run has taken its place");
}

TEST(NodeZeroLost, InAnAttemptStopsTheRanksFirst) {
  Launcher one = running_one();
  EXPECT_EQ(one.hear(lost_at(1)), Phase::orphaned);
  EXPECT_EQ(one.stops, 1);
  EXPECT_TRUE(one.told.empty());
  EXPECT_EQ(one.hear(heard_at(2)), Phase::orphaned) << "they still run";
  Heard ended = heard_at(3);
  ended.own_end = kStopped;
  EXPECT_EQ(one.hear(ended), Phase::over);
  EXPECT_TRUE(contains(one.told_one<Failure>().what, "node 0 (host0, ranks 0, 1) has not answered"));
}

TEST(NodeZeroLost, WithRestartsLeftItIsLookedForAndToldOfWhatWasBrokenOff) {
  Launcher one = running_one(2);
  one.hear(lost_at(1));
  Heard ended = heard_at(2);
  ended.own_end = kStopped;
  EXPECT_EQ(one.hear(ended), Phase::joining);
  EXPECT_EQ(one.told_one<Verdict>().kind, Verdict::Kind::restart);
  // It was the network: node 0 is there and still waits for the end of that attempt.
  Heard same = heard_at(3);
  same.plan = plan_of_job(0, 2);
  EXPECT_EQ(one.hear(same), Phase::joining);
  EXPECT_EQ(one.put_keys(), (Keys{end_key(0, 1), over_key(0)}));
  EXPECT_EQ(decode_end(one.puts.at(end_key(0, 1))).kind, Kind::vanished);
  one.hear(same);
  EXPECT_TRUE(one.puts.empty()) << "said once";
  // It was started anew: another launcher's round 0 is another attempt.
  same.plan->nodes[0].launcher = "the next";
  EXPECT_EQ(one.hear(same), Phase::running);
}

TEST(NodeZeroLost, WhoeverIsToldToLeaveDoesNotLookForIt) {
  for (const bool told : {true, false}) {
    Launcher one = running_one(2);
    one.hear(lost_at(1));
    Heard ended = heard_at(2);
    ended.own_end = told ? kStopped : kInterrupted;
    if (told) ended.leaving = kInterrupted;
    EXPECT_EQ(one.hear(ended), Phase::over);
    EXPECT_EQ(one.told_one<Failure>().exit_code, kHostLostExit);
  }
}

TEST(NodeZeroLost, AfterTheLastVerdictChangesNothing) {
  Launcher one = running_one();
  Heard heard = heard_at(1);
  heard.own_end = kGood;
  heard.next = Verdict{};
  EXPECT_EQ(one.hear(heard), Phase::leaving);
  EXPECT_EQ(one.hear(lost_at(2)), Phase::over);
  EXPECT_EQ(one.told_one<Verdict>().kind, Verdict::Kind::done);
}

// --- leaving

TEST(Leaving, NodeZeroStaysForThoseWhoNeedItsStore) {
  Launcher zero = running_zero();
  Heard heard = attempt_at(1, {1, 1, 1}, {std::nullopt, kGood, kGood});
  heard.own_end = kGood;
  EXPECT_EQ(zero.hear(heard), Phase::leaving);
  EXPECT_TRUE(zero.told.empty());
  Heard staying = heard_at(2);
  staying.staying = {1, 2};
  EXPECT_EQ(zero.hear(staying), Phase::leaving);
  EXPECT_EQ(zero.wait_for, bye_key(1));
  staying.staying = {2};
  staying.now = at(1001);
  EXPECT_EQ(zero.hear(staying), Phase::leaving) << "999 ms after it began to wait";
  staying.now = at(1002);
  EXPECT_EQ(zero.hear(staying), Phase::over) << "a node that is stuck holds up nobody for ever";
  EXPECT_EQ(zero.told_one<Verdict>().kind, Verdict::Kind::done);
}

TEST(Leaving, NodeZeroDoesNotWaitForOneThatVanished) {
  Launcher zero = running_zero();
  look_again(zero, 0, 1000, {1, 1, 1});
  Heard silent = attempt_at(1001, {2, 2, 1}, {std::nullopt, kStopped, std::nullopt});
  silent.own_end = kStopped;
  EXPECT_EQ(zero.hear(silent), Phase::leaving);
  Heard staying = heard_at(1002);
  staying.staying = {2};
  EXPECT_EQ(zero.hear(staying), Phase::over);
  EXPECT_EQ(zero.told_one<Verdict>().exit_code, kHostLostExit);
}

// --- whole jobs

// Three launchers over one map. They take turns at random; each rank of a node ends at a random time, with a random
// end, and one launcher may fall silent. Nothing else decides how the job goes.
class Job {
 public:
  explicit Job(unsigned seed) : random_(seed) {
    for (int node = 0; node < 3; ++node) launchers_.emplace_back(node, 2);
    silent_ = draw(4);  // 0 and 3: nobody
  }

  void run() {
    store_[kRoundKey] = "0";
    for (turn_ = 0; turn_ < 20000 && !is_over(); ++turn_) {
      const int node = draw(3);
      const bool absent = is_silent(node) && turn_ > 60;
      if (!absent && launchers_[node].position.phase != Phase::over) take_turn(node);
    }
  }

  // What a launcher was told at the end.
  std::string outcome(int node) const {
    const auto& told = outcomes_[node];
    if (told.empty()) return "nothing";
    if (const auto* verdict = std::get_if<Verdict>(&told.back())) return concat("verdict ", verdict->exit_code);
    if (const auto* failure = std::get_if<Failure>(&told.back())) return concat("failure ", failure->exit_code);
    return "something else";
  }
  bool is_silent(int node) const { return node != 0 && node == silent_; }

 private:
  bool is_over() const {
    for (int node = 0; node < 3; ++node) {
      if (!is_silent(node) && launchers_[node].position.phase != Phase::over) return false;
    }
    return true;
  }
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  bool has(const std::string& key) const { return store_.contains(key); }

  // As NodeCoordinator hears; a turn is ten milliseconds.
  Heard hear(int node) {
    const Position& position = launchers_[node].position;
    Heard heard = heard_at(10 * turn_);
    ++beats_[node];
    heard.own_end = ends_[node];
    if (has(kQuitKey)) heard.quit = decode_end(store_[kQuitKey]);
    heard.round = std::stoi(store_[kRoundKey]);
    if (has(plan_key(heard.round))) heard.plan = decode_plan(store_[plan_key(heard.round)]);
    heard.over = has(over_key(position.round));
    if (has(next_key(position.round))) heard.next = decode_verdict(store_[next_key(position.round)]);
    heard.beats.assign(beats_, beats_ + 3);
    heard.ends.resize(3);
    for (int other = 0; other < 3; ++other) {
      const std::string end = end_key(position.round, other);
      if (has(end)) heard.ends[other] = decode_end(store_[end]);
      if (other == 0) continue;
      if (!has(bye_key(other))) heard.staying.push_back(other);
      const std::string join = join_key(position.round, other);
      if (has(join)) {
        heard.joined.push_back(decode_node(store_[join]));
      } else {
        heard.absent.push_back(other);
      }
    }
    return heard;
  }

  void take_turn(int node) {
    Launcher& launcher = launchers_[node];
    launcher.hear(hear(node));
    for (const auto& [key, value] : launcher.puts) store_[key] = value;
    for (const NodeEvent& event : launcher.told) outcomes_[node].push_back(event);
    if (launcher.begins > 0) ends_[node].reset();
    if (launcher.position.phase != Phase::running || ends_[node]) return;
    if (launcher.stops > 0) {
      ends_[node] = kStopped;
    } else if (draw(20) == 0) {
      ends_[node] = draw(3) == 0 ? kFailed : kGood;
    }
  }

  std::mt19937 random_;
  int turn_ = 0;
  int silent_ = 0;
  std::vector<Launcher> launchers_;
  std::map<std::string, std::string> store_;
  std::int64_t beats_[3] = {};
  std::optional<NodeEnd> ends_[3];
  std::vector<NodeEvent> outcomes_[3];
};

TEST(WholeJobs, AllLaunchersThatAreLeftAreToldTheSame) {
  std::map<std::string, int> seen;
  for (unsigned seed = 0; seed < 24; ++seed) {
    Job job(seed);
    job.run();
    const std::string outcome = job.outcome(0);
    ++seen[outcome];
    for (const int node : {1, 2}) {
      if (!job.is_silent(node)) {
        EXPECT_EQ(job.outcome(node), outcome) << "node " << node << ", seed " << seed;
      }
    }
  }
  EXPECT_EQ(seen.count("nothing"), 0U) << "no job hangs";
  EXPECT_GT(seen["verdict 0"], 0);
  EXPECT_GT(seen["verdict 7"], 0);
  EXPECT_GT(seen["failure 122"], 0) << "a node that fell silent does not join again";
}

}  // namespace
}  // namespace gradwire::launch
