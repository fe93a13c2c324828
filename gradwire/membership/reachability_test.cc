// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Members that do not reach each other are not in one epoch, and the job goes on where it can.
#include "gradwire/membership/reachability.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "gradwire/membership/roster_test_support.h"

namespace gradwire::membership::reachability_test {
namespace {

// One member on each of `hosts` joins, in this order, and the first epoch has all of them.
struct Job : Bench {
  explicit Job(const std::vector<std::string>& hosts, int min = 1)
      : Bench({.min = min, .max = 16, .first = static_cast<int>(hosts.size())}) {
    for (const std::string& host : hosts) members_of_job.push_back(join("net", host));
  }
  void all_begin() {
    for (const std::int64_t member : members()) tell(Began{member, roster.epoch, 0});
  }
  void do_not_reach(std::int64_t member, std::int64_t peer) { tell(Unreachable{member, roster.epoch, peer}); }
  // The members of the epoch that follows when all of the present one are ready.
  Numbers next() {
    for (const std::int64_t member : members()) ready(member);
    return members();
  }
  bool is_dropped(std::int64_t member) const { return !value_of(dropped_key(member)).empty(); }
  Numbers members_of_job;
};

TEST(Reachability, OfTwoHostsTheOneThatJoinedLastGoesWithAllItsMembers) {
  Job job({"1", "2", "1", "2", "3"});
  job.do_not_reach(1, 2);
  job.do_not_reach(2, 1);
  EXPECT_FALSE(job.is_dropped(2)) << "others may say more before all are ready";
  EXPECT_EQ(job.next(), (Numbers{1, 3, 5}));
  EXPECT_EQ(job.value_of(dropped_key(2)), "it and member 1 do not reach each other");
  EXPECT_EQ(job.value_of(dropped_key(4)), "it and member 1 do not reach each other");
  EXPECT_FALSE(job.is_dropped(1));
  EXPECT_EQ(job.next(), (Numbers{1, 3, 5})) << "they stay out";
}

TEST(Reachability, OneSideIsEnough) {
  for (const bool swapped : {false, true}) {
    Job job({"1", "2"});
    swapped ? job.do_not_reach(2, 1) : job.do_not_reach(1, 2);
    EXPECT_EQ(job.next(), Numbers{1});
  }
}

TEST(Reachability, AHostThatReachesNobodyGoesThoughItJoinedFirst) {
  Job job({"1", "2", "3", "4"});
  job.all_begin();
  for (const std::int64_t peer : {2, 3, 4}) job.do_not_reach(1, peer);
  EXPECT_EQ(job.next(), (Numbers{2, 3, 4}));
}

TEST(Reachability, BrokenPathsThatShareNoHostCostOneHostEach) {
  Job job({"1", "2", "3", "4"});
  job.do_not_reach(1, 2);
  job.do_not_reach(3, 4);
  EXPECT_EQ(job.next(), (Numbers{1, 3}));
}

TEST(Reachability, MembersOfOneHostGoOneByOne) {
  Job job({"1", "1", "1", "2"});
  job.do_not_reach(1, 2);
  EXPECT_EQ(job.next(), (Numbers{1, 3, 4}));
}

TEST(Reachability, MembersThatWaitOnTheHostGoWithIt) {
  Job job({"1", "2"});
  const auto newcomer = job.join("net", "2");
  const auto another = job.join("net", "3");
  job.do_not_reach(1, 2);
  EXPECT_EQ(job.next(), (Numbers{1, another}));
  EXPECT_TRUE(job.is_dropped(newcomer));
}

TEST(Reachability, TheHostThatHoldsTheStateStaysThoughItReachesNoneOfThree) {
  Job job({"1"});
  job.all_begin();
  Numbers newcomers;
  for (const char* host : {"2", "3", "4"}) newcomers.push_back(job.join("net", host));
  EXPECT_EQ(job.next().size(), 4U);
  for (const std::int64_t peer : newcomers) job.do_not_reach(peer, 1);
  EXPECT_EQ(job.next(), Numbers{1});
}

TEST(Reachability, NobodyGoesWhereTooFewWouldBeLeft) {
  Job job({"1", "2", "3"}, 3);
  job.do_not_reach(1, 2);
  EXPECT_EQ(job.next(), (Numbers{1, 2, 3}));
  EXPECT_TRUE(job.roster.unreachable.empty()) << "they try again, and tell again";
  const auto fourth = job.join("net", "4");
  job.do_not_reach(1, 2);
  EXPECT_EQ(job.next(), (Numbers{1, 3, fourth})) << "with a newcomer enough are left";
}

TEST(Reachability, WhoLeavesDoesNotCountAmongThoseWhoAreLeft) {
  Job job({"1", "2", "3"}, 2);
  job.tell(Leaving{3});
  job.do_not_reach(1, 2);
  EXPECT_EQ(job.next(), (Numbers{1, 2, 3}));
}

TEST(Reachability, AMemberThatHasDiedWasUnreachableForThatReason) {
  Job job({"1", "2", "3"});
  job.do_not_reach(1, 2);
  job.do_not_reach(3, 2);
  job.tell(Died{2, "was killed"});
  EXPECT_EQ(job.next(), (Numbers{1, 3}));
  EXPECT_FALSE(job.is_dropped(1));
  EXPECT_FALSE(job.is_dropped(3));
}

TEST(Reachability, WhatWasToldOfAnEarlierEpochDoesNotCount) {
  Job job({"1", "2"});
  job.next();
  job.tell(Unreachable{1, 1, 2});
  EXPECT_EQ(job.next(), (Numbers{1, 2}));
}

TEST(Reachability, NobodyGoesInAReplay) {
  Bench replay({.replay = {{1, 0, {1, 2}, {"", "1"}}, {2, 5, {1, 2}, {"", "1"}}}});
  replay.join();
  replay.join();
  replay.tell(Unreachable{1, 1, 2});
  replay.ready(1);
  replay.ready(2);
  EXPECT_EQ(replay.members(), (Numbers{1, 2}));
}

// Whatever is told, in whatever order: those who are left reach each other, unless too few of them would be left
// without one more; the state is kept; and the order does not matter.
TEST(Reachability, PropertiesOfRandomPaths) {
  int dropped = 0;
  int stuck = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    const int count = 2 + static_cast<int>(random() % 6);
    const int min = 1 + static_cast<int>(random() % static_cast<unsigned>(count));
    std::vector<std::string> hosts;
    for (int i = 0; i < count; ++i) hosts.push_back(std::to_string(random() % 4));
    Job job(hosts, min);
    const auto holder = static_cast<std::int64_t>(1 + random() % static_cast<unsigned>(count));
    job.tell(Began{holder, 1, 0});
    std::vector<Unreachable> told;
    for (unsigned i = 0; i < 1 + random() % 5; ++i) {
      const auto one = static_cast<std::int64_t>(1 + random() % static_cast<unsigned>(count));
      const auto other = static_cast<std::int64_t>(1 + random() % static_cast<unsigned>(count));
      if (one != other) told.push_back({one, 1, other});
    }
    Job reversed = job;
    for (const Unreachable& each : told) job.tell(each);
    std::reverse(told.begin(), told.end());
    for (const Unreachable& each : told) reversed.tell(each);
    const Numbers left = job.next();
    ASSERT_EQ(reversed.next(), left) << "seed " << seed;
    ASSERT_GE(static_cast<int>(left.size()), min) << "seed " << seed;
    const auto stays = [&](std::int64_t member) { return std::find(left.begin(), left.end(), member) != left.end(); };
    ASSERT_TRUE(stays(holder)) << "seed " << seed;
    dropped += count - static_cast<int>(left.size());
    const auto without = [&](std::int64_t member, bool whole_host) {
      return static_cast<int>(std::count_if(left.begin(), left.end(), [&](std::int64_t other) {
        const auto& host = [&](std::int64_t of) { return hosts[static_cast<std::size_t>(of - 1)]; };
        return whole_host ? host(other) != host(member) : other != member;
      }));
    };
    for (const Unreachable& each : told) {
      if (!stays(each.member) || !stays(each.peer)) continue;
      ++stuck;
      const bool two_hosts =
          hosts[static_cast<std::size_t>(each.member - 1)] != hosts[static_cast<std::size_t>(each.peer - 1)];
      const bool holder_is_with_one =
          !two_hosts ? each.member == holder
                     : hosts[static_cast<std::size_t>(each.member - 1)] == hosts[static_cast<std::size_t>(holder - 1)];
      const bool holder_is_with_peer =
          !two_hosts ? each.peer == holder
                     : hosts[static_cast<std::size_t>(each.peer - 1)] == hosts[static_cast<std::size_t>(holder - 1)];
      ASSERT_TRUE(holder_is_with_one || without(each.member, two_hosts) < min) << "seed " << seed;
      ASSERT_TRUE(holder_is_with_peer || without(each.peer, two_hosts) < min) << "seed " << seed;
    }
  }
  EXPECT_GT(dropped, 100);
  EXPECT_GT(stuck, 10);
}

}  // namespace
}  // namespace gradwire::membership::reachability_test
