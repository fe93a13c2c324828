// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decisions of the coordinator, from events alone.
#include "gradwire/membership/roster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "gradwire/base/error.h"
#include "gradwire/membership/roster_test_support.h"

namespace gradwire::membership::roster_test {
namespace {

TEST(RosterTest, TheFirstEpochWaitsForItsMembersAndOrdersThemAsTheyCame) {
  Bench bench({.min = 1, .max = 4, .first = 3});
  const auto a = bench.join();
  const auto b = bench.join();
  EXPECT_EQ(bench.roster.epoch, 0);
  const auto c = bench.join();
  EXPECT_EQ(bench.roster.epoch, 1);
  EXPECT_EQ(bench.members(), (Numbers{a, b, c}));
  EXPECT_TRUE(bench.epoch().fresh);
}

TEST(RosterTest, AHurriedFirstEpochBeginsWithTheFewestMembersAllowed) {
  Bench bench({.min = 2, .max = 4, .first = 4});
  bench.join();
  bench.tell(Hurry{});
  EXPECT_EQ(bench.roster.epoch, 0);
  bench.join();
  EXPECT_EQ(bench.roster.epoch, 1);
}

TEST(RosterTest, SurvivorsGoOnOnceAllOfThemAreReady) {
  Bench bench({.min = 1, .max = 4, .first = 3});
  const auto a = bench.join();
  const auto b = bench.join();
  const auto c = bench.join();
  bench.tell(Began{a, 1, 0});
  bench.tell(Died{b, "was killed"});
  EXPECT_EQ(awaited(bench.roster), (Numbers{a, c}));
  bench.ready(c);
  EXPECT_EQ(bench.roster.epoch, 1);
  EXPECT_EQ(awaited(bench.roster), (Numbers{a}));
  bench.ready(a);
  EXPECT_EQ(bench.roster.epoch, 2);
  EXPECT_EQ(bench.members(), (Numbers{a, c}));
  EXPECT_FALSE(bench.epoch().fresh);
  EXPECT_TRUE(awaited(bench.roster).empty());
}

TEST(RosterTest, AJobBelowItsSmallestSizeWaitsForANewMember) {
  Bench bench({.min = 2, .max = 2, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  bench.tell(Died{a, "was killed"});
  bench.ready(b);
  EXPECT_EQ(bench.roster.epoch, 1);
  const auto c = bench.join();
  EXPECT_EQ(bench.members(), (Numbers{b, c}));
}

TEST(RosterTest, ANewMemberStopsTheEpochAtABoundaryAndComesLast) {
  Bench bench({.min = 1, .max = 3, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  EXPECT_EQ(bench.value_of(change_key(1)), "");
  const auto c = bench.join();
  EXPECT_EQ(bench.value_of(change_key(1)), "1");
  EXPECT_EQ(bench.value_of(admitted_key(c)), "2");
  bench.ready(b);
  bench.ready(a);
  EXPECT_EQ(bench.members(), (Numbers{a, b, c}));
}

TEST(RosterTest, AMemberBeyondTheLargestSizeWaitsForAPlace) {
  Bench bench({.min = 1, .max = 2, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  const auto spare = bench.join();
  EXPECT_EQ(bench.value_of(change_key(1)), "");
  bench.tell(Died{a, "was killed"});
  bench.ready(b);
  EXPECT_EQ(bench.members(), (Numbers{b, spare}));
}

TEST(RosterTest, AMemberThatLeavesInGoodOrderIsNotInTheNextEpoch) {
  Bench bench({.min = 1, .max = 2, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  bench.tell(Leaving{a});
  EXPECT_EQ(bench.value_of(change_key(1)), "1");
  bench.ready(b);
  bench.tell(Left{a});
  EXPECT_EQ(bench.members(), (Numbers{b}));
}

// It gave up waiting at the moment in which the epoch was decided.
TEST(RosterTest, AMemberThatLeavesWhileItWaitsIsMissedInTheEpochThatHasIt) {
  Bench bench({.min = 1, .max = 3, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  const auto c = bench.join();
  bench.ready(a);
  bench.ready(b);
  ASSERT_EQ(bench.members(), (Numbers{a, b, c}));
  bench.tell(Died{c, "left while it waited"});
  EXPECT_EQ(bench.value_of(lost_key(2)), std::to_string(c));
  const auto d = bench.join();
  bench.tell(Died{d, "left while it waited"});
  EXPECT_EQ(bench.value_of(lost_key(2)), std::to_string(c)) << "d was in no epoch";
}

TEST(RosterTest, AnotherProgramOrVersionIsRefusedInOneSentenceAndHarmsNobody) {
  Bench bench({.min = 1, .max = 4, .first = 1});
  bench.join("net 1");
  const auto other = bench.join("net 2");
  EXPECT_EQ(bench.value_of(refused_key(other)),
            "this process trains 'net 2' and the job trains 'net 1'; a member must run the same program with the same "
            "model, optimizers and hooks");
  const auto old = bench.tell(Joined{"someone", "0.9", "net 1"});
  EXPECT_EQ(bench.value_of(refused_key(old)),
            "this process runs gradwire 0.9 and the job runs gradwire 1.0; start it with the job's version");
  EXPECT_EQ(bench.value_of(change_key(1)), "");
  EXPECT_EQ(bench.roster.epoch, 1);
}

TEST(RosterTest, AMemberThatWasTakenForDeadIsToldSo) {
  Bench bench({.min = 1, .max = 2, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  bench.tell(Died{a, "was not heard of"});
  bench.ready(b);
  EXPECT_NE(bench.value_of(refused_key(a)).find("because it was not heard of"), std::string::npos);
  bench.tell(Ready{a, 1});  // changes nothing
  EXPECT_EQ(bench.members(), (Numbers{b}));
  EXPECT_EQ(bench.roster.epoch, 2);
}

// The job is full, and all leave: one of them, which has the state, meets those who wait.
TEST(RosterTest, WhereAllLeaveOneOfThemMeetsThoseWhoWait) {
  Bench bench({.min = 1, .max = 2, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  const auto c = bench.join();
  bench.tell(Leaving{a});
  bench.tell(Leaving{b});
  bench.ready(a);
  bench.ready(b);
  EXPECT_EQ(bench.members(), (Numbers{a, c}));
  bench.tell(Leaving{a});
  bench.tell(Left{a});
  bench.ready(c);
  EXPECT_EQ(bench.members(), (Numbers{c, b})) << "who still wants to hand something over finds a place";
}

// The host of the only members is silent for a while: they must not train on beside those who take their place.
TEST(RosterTest, MembersThatAllWereTakenForDeadStopAtABoundary) {
  Bench bench({.min = 1, .max = 2, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  bench.tell(Died{a, "was not heard of"});
  EXPECT_EQ(bench.value_of(change_key(1)), "") << "the other one ends the epoch";
  bench.tell(Died{b, "was not heard of"});
  EXPECT_EQ(bench.value_of(change_key(1)), "1");
  const auto c = bench.join();
  EXPECT_EQ(bench.members(), Numbers{c});
}

TEST(RosterTest, TheEndOfTheJobTakesThePlaceOfTheNextEpoch) {
  Bench bench({.min = 1, .max = 2, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  bench.tell(Done{a});
  const auto late = bench.join();
  EXPECT_TRUE(epoch_of(bench.value_of(epoch_key(2))).finished);
  EXPECT_EQ(bench.value_of(admitted_key(late)), "2");
  bench.ready(b);
  EXPECT_EQ(bench.roster.epoch, 1);
}

TEST(RosterTest, AJobOfWhichNobodyHoldsTheStateHasEnded) {
  Bench bench({.min = 1, .max = 2, .first = 1});
  const auto a = bench.join();
  bench.tell(Began{a, 1, 0});
  bench.tell(Died{a, "was killed"});
  const auto b = bench.join();
  EXPECT_EQ(bench.members(), Numbers{b});
  bench.tell(StateLost{b, 1});
  EXPECT_FALSE(bench.roster.is_over()) << "of an earlier epoch";
  bench.tell(StateLost{b, 2});
  EXPECT_TRUE(bench.roster.lost);
  EXPECT_TRUE(epoch_of(bench.value_of(epoch_key(3))).lost);
  bench.tell(Done{b});
  EXPECT_FALSE(bench.roster.finished);
  const auto late = bench.join();
  EXPECT_EQ(bench.value_of(admitted_key(late)), "3") << "it finds the end there";
  bench.ready(b);
  EXPECT_EQ(bench.roster.epoch, 2);
}

TEST(RosterTest, TellsHowManyMembersTheNextEpochLacks) {
  Bench bench({.min = 3, .max = 4, .first = 3});
  const auto a = bench.join();
  EXPECT_EQ(bench.roster.lacking, 2);
  const auto b = bench.join();
  const auto c = bench.join();
  EXPECT_EQ(bench.roster.lacking, 0);
  bench.tell(Died{a, "was killed"});
  EXPECT_EQ(bench.roster.lacking, 0) << "the others are in a step";
  bench.ready(b);
  bench.tell(Died{c, "was killed"});
  EXPECT_EQ(bench.roster.lacking, 2);
  bench.join();
  EXPECT_EQ(bench.roster.lacking, 1);
  bench.join();
  EXPECT_EQ(bench.roster.lacking, 0);
  EXPECT_EQ(bench.roster.epoch, 2);
}

// Members 1, 2, 3 of the played job: 2 goes, then 7 comes.
TEST(RosterTest, AReplayPlaysTheEpochsWithTheirRolesAndStops) {
  RosterOptions options{.min = 1, .max = 3, .first = 3};
  options.replay = {{1, 0, {1, 2, 3}}, {4, 10, {1, 3}}, {5, 25, {1, 3, 7}}};
  Bench bench(options);
  const auto a = bench.join();
  const auto b = bench.join();
  EXPECT_EQ(bench.roster.epoch, 0);
  const auto c = bench.join();
  EXPECT_EQ(bench.members(), (Numbers{a, b, c}));
  EXPECT_EQ(bench.value_of(stop_key(1)), "10");
  EXPECT_EQ(bench.value_of(change_key(1)), "1");
  bench.ready(a);
  bench.ready(b);
  bench.ready(c);
  EXPECT_EQ(bench.members(), (Numbers{a, c}));
  EXPECT_EQ(bench.value_of(stop_key(2)), "25");
  bench.ready(c);
  bench.ready(a);
  EXPECT_EQ(bench.members(), (Numbers{a, c, b}));
  EXPECT_EQ(bench.value_of(change_key(3)), "");
}

// So the sums of the replay are formed in the order of the played job.
TEST(RosterTest, AReplayHasTheHostsOfThePlayedJob) {
  RosterOptions options{.min = 1, .max = 2, .first = 2};
  options.replay = {{1, 0, {1, 2}, {"left", "right"}}, {2, 10, {2, 3}, {"right", "middle"}}};
  Bench bench(options);
  const auto a = bench.join();
  const auto b = bench.join();
  const auto hosts = [&](std::int64_t epoch) {
    const Epoch played = epoch_of(bench.value_of(epoch_key(epoch)));
    EXPECT_TRUE(played.played);
    std::vector<std::string> names;
    for (const EpochMember& member : played.members) names.push_back(member.host);
    return names;
  };
  EXPECT_EQ(hosts(1), (std::vector<std::string>{"left", "right"}));
  bench.ready(a);
  bench.ready(b);
  EXPECT_EQ(bench.members(), (Numbers{b, a}));
  EXPECT_EQ(hosts(2), (std::vector<std::string>{"right", "middle"}));
}

TEST(RosterTest, SizesThatMakeNoSenseAreRefused) {
  EXPECT_THROW(require_valid({.min = 3, .max = 2, .first = 2}), InvalidArgument);
  EXPECT_THROW(require_valid({.min = 0, .max = 2, .first = 1}), InvalidArgument);
  EXPECT_THROW(require_valid({.min = 1, .max = 65, .first = 1}), InvalidArgument);
  EXPECT_THROW(require_valid({.min = 2, .max = 3, .first = 1}), InvalidArgument);
  EXPECT_THROW(require_valid({.min = 2, .max = 3, .first = 4}), InvalidArgument);
  EXPECT_NO_THROW(require_valid({.min = 1, .max = 64, .first = 64}));
}

TEST(RosterTest, TextsComeBackAsTheyWere) {
  const Epoch epoch{.number = 7, .fresh = false, .members = {{3, "host 12 9", "2"}, {5, "host 13 9"}}};
  EXPECT_EQ(epoch_of(to_text(epoch)), epoch);
  Epoch played = epoch;
  played.played = true;
  EXPECT_EQ(epoch_of(to_text(played)), played);
  const Event joined = event_of(to_text(Joined{"an\tidentity", "1.0", "a\nprogram", "4"}));
  EXPECT_EQ(std::get<Joined>(joined).host, "4");
  EXPECT_EQ(std::get<Joined>(joined).identity, "an identity");
  EXPECT_EQ(std::get<Joined>(joined).program, "a program");
  const Event began = event_of(to_text(Began{3, 4, 5}));
  EXPECT_EQ(std::get<Began>(began).epoch, 4);
  EXPECT_EQ(std::get<Began>(began).step, 5);
  EXPECT_TRUE(std::holds_alternative<StoreRestored>(event_of(to_text(StoreRestored{}))));
  const auto unreachable = std::get<Unreachable>(event_of(to_text(Unreachable{8, 4, 9})));
  EXPECT_EQ(unreachable.member, 8);
  EXPECT_EQ(unreachable.epoch, 4);
  EXPECT_EQ(unreachable.peer, 9);
  const auto follower = std::get<Joined>(event_of(to_text(Joined{"identity", "1.0", "program", "", true})));
  EXPECT_TRUE(follower.follows);
  EXPECT_EQ(follower.host, "");
  const auto reached = std::get<Reached>(event_of(to_text(Reached{5, 6, 7})));
  EXPECT_EQ(reached.member, 5);
  EXPECT_EQ(reached.epoch, 6);
  EXPECT_EQ(reached.step, 7);
  const auto lost = std::get<StateLost>(event_of(to_text(StateLost{5, 6})));
  EXPECT_EQ(lost.member, 5);
  EXPECT_EQ(lost.epoch, 6);
  const Epoch end{.number = 7, .lost = true, .members = {}};
  EXPECT_EQ(epoch_of(to_text(end)), end);
  const Event caught_up = event_of(to_text(CaughtUp{6, 2}));
  EXPECT_EQ(std::get<CaughtUp>(caught_up).member, 6);
  EXPECT_EQ(std::get<CaughtUp>(caught_up).epoch, 2);
  const Event cannot_follow = event_of(to_text(CannotFollow{7, 3}));
  EXPECT_EQ(std::get<CannotFollow>(cannot_follow).member, 7);
  EXPECT_EQ(std::get<CannotFollow>(cannot_follow).epoch, 3);
}

// Two members run, up to four may.
struct FollowBench : Bench {
  explicit FollowBench(int min = 1) : Bench({.min = min, .max = 4, .first = 2}), a(join()), b(join()) {}
  std::int64_t join_to_follow() { return tell(Joined{"someone", "1.0", "net", "", true}); }
  void all_ready() {
    for (const std::int64_t member : members()) ready(member);
  }
  bool is_asked_to_stop() const { return !value_of(change_key(roster.epoch)).empty(); }
  std::int64_t a;
  std::int64_t b;
};

TEST(RosterTest, TheMembersStopForThoseThatFollowWhenAllOfThemHaveCaughtUp) {
  FollowBench bench;
  const auto c = bench.join_to_follow();
  const auto d = bench.join_to_follow();
  for (const auto& [member, place] : {std::pair{c, 0}, std::pair{d, 1}}) {
    EXPECT_EQ(bench.value_of(followed_key(member)), "1");
    EXPECT_EQ(epoch_member_of(bench.value_of(follower_key(1, place))), (EpochMember{member, "someone"}));
  }
  bench.tell(CaughtUp{c, 1});
  bench.tell(CaughtUp{c, 1});
  EXPECT_FALSE(bench.is_asked_to_stop());
  bench.tell(CaughtUp{d, 1});
  EXPECT_TRUE(bench.is_asked_to_stop());
  bench.all_ready();
  EXPECT_EQ(bench.members(), (Numbers{bench.a, bench.b, c, d}));
}

TEST(RosterTest, AFollowerThatDiesIsNotWaitedFor) {
  FollowBench bench;
  const auto c = bench.join_to_follow();
  bench.tell(Died{c, "has ended"});
  EXPECT_FALSE(bench.is_asked_to_stop()) << "nobody waits";
  const auto d = bench.join_to_follow();
  const auto e = bench.join_to_follow();
  bench.tell(CaughtUp{d, 1});
  EXPECT_FALSE(bench.is_asked_to_stop());
  bench.tell(Died{e, "has ended"});
  EXPECT_TRUE(bench.is_asked_to_stop());
}

TEST(RosterTest, AFollowerThatCannotFollowIsNotWaitedForBeforeItIsBack) {
  FollowBench bench;
  const auto stuck = bench.join_to_follow();
  bench.tell(CannotFollow{stuck, 1});
  EXPECT_FALSE(bench.is_asked_to_stop()) << "nobody else waits";
  const auto other = bench.join_to_follow();
  bench.tell(CaughtUp{other, 1});
  EXPECT_TRUE(bench.is_asked_to_stop());
  bench.ready(bench.a);
  bench.ready(bench.b);
  EXPECT_EQ(bench.members(), (Numbers{bench.a, bench.b, other}));
  EXPECT_FALSE(bench.is_asked_to_stop());
  bench.tell(CaughtUp{stuck, 1});
  EXPECT_TRUE(bench.is_asked_to_stop());
  for (const auto member : {bench.a, bench.b, other}) bench.ready(member);
  EXPECT_EQ(bench.members(), (Numbers{bench.a, bench.b, other, stuck}));
}

// It may be stuck. The others go on at once, and stop for it when it tells that it is there.
TEST(RosterTest, AFollowerThatHasNotCaughtUpWhenTheEpochEndsIsNotWaitedForBeforeItIsBack) {
  FollowBench bench;
  const auto c = bench.join_to_follow();
  bench.tell(Died{bench.a, "has ended"});
  bench.ready(bench.b);
  EXPECT_EQ(bench.members(), (Numbers{bench.b}));
  EXPECT_FALSE(bench.is_asked_to_stop());
  bench.tell(CaughtUp{c, 1});
  EXPECT_TRUE(bench.is_asked_to_stop());
  bench.ready(bench.b);
  EXPECT_EQ(bench.members(), (Numbers{bench.b, c}));
}

// The others are too few without it.
TEST(RosterTest, AFollowerThatIsNeededIsInTheNextEpochWhenItIsBack) {
  FollowBench bench(/*min=*/2);
  const auto c = bench.join_to_follow();
  bench.tell(Left{bench.a});
  EXPECT_FALSE(bench.is_asked_to_stop());
  bench.ready(bench.b);
  EXPECT_EQ(bench.roster.epoch, 1);
  EXPECT_TRUE(bench.is_asked_to_stop()) << "the follower has to know";
  bench.tell(CaughtUp{c, 1});
  EXPECT_EQ(bench.roster.epoch, 2);
  EXPECT_EQ(bench.members(), (Numbers{bench.b, c}));
}

TEST(RosterTest, WhoCannotFollowJoinsAsWithoutFollowing) {
  {
    FollowBench bench;  // two places are free
    bench.join_to_follow();
    bench.join_to_follow();
    const auto third = bench.join_to_follow();
    EXPECT_EQ(bench.value_of(followed_key(third)), "0");
    EXPECT_FALSE(bench.is_asked_to_stop()) << "there is no place";
  }
  {
    FollowBench bench;
    const auto c = bench.join_to_follow();
    const auto d = bench.join();
    EXPECT_FALSE(bench.is_asked_to_stop()) << "the members stop once for both";
    bench.tell(CaughtUp{c, 1});
    EXPECT_TRUE(bench.is_asked_to_stop());
    bench.all_ready();
    EXPECT_EQ(bench.members(), (Numbers{bench.a, bench.b, c, d}));
  }
  {
    FollowBench bench;
    bench.tell(Leaving{bench.a});
    EXPECT_EQ(bench.value_of(followed_key(bench.join_to_follow())), "0") << "the epoch stops already";
  }
  {
    Bench bench({.min = 1, .max = 4, .first = 1});
    bench.join();
    const auto b = bench.tell(Joined{"someone", "1.0", "net", "", true});
    EXPECT_EQ(bench.value_of(followed_key(b)), "0") << "one member averages nothing";
    EXPECT_EQ(bench.value_of(change_key(1)), "1");
  }
}

TEST(RosterTest, MembersMeetAnewOverAnotherStore) {
  Bench bench({.min = 2, .max = 2, .first = 2});
  bench.tell(StoreRestored{});  // there is no epoch yet
  const auto a = bench.join();
  const auto b = bench.join();
  EXPECT_EQ(bench.value_of(change_key(1)), "");
  bench.tell(StoreRestored{});
  EXPECT_EQ(bench.value_of(change_key(1)), "1");
  bench.ready(a);
  bench.ready(b);
  EXPECT_EQ(bench.roster.epoch, 2);
  EXPECT_EQ(bench.members(), (Numbers{a, b}));
  EXPECT_EQ(bench.value_of(change_key(2)), "");
}

TEST(RosterTest, AnEarlierVersionJoinsWithoutAHost) {
  const Event joined = event_of("joined\tsomeone\t0.9\tnet");
  EXPECT_EQ(std::get<Joined>(joined).program, "net");
  EXPECT_EQ(std::get<Joined>(joined).host, "");
  const Event with_host = event_of("joined\tsomeone\t0.9\tnet\t1\tfollows");
  EXPECT_EQ(std::get<Joined>(with_host).host, "1");
  EXPECT_TRUE(std::get<Joined>(with_host).follows);
  EXPECT_EQ(std::get<Joined>(with_host).machine, "");
}

TEST(RosterTest, TextOfSomebodyElseIsRefused) {
  for (const char* text : {"", "joined\tx", "ready\t1", "ready\tx\t1", "ready\t-1\t2", "hello", "died\t1"}) {
    EXPECT_THROW(event_of(text), StoreError) << text;
    EXPECT_FALSE(known_event_of(text)) << text;
  }
  for (const char* text : {"", "epoch", "epoch\t1\t1", "epoch\t1\t1\t2", "epoch\t1\t1\t2\ta", "finished"})
    EXPECT_THROW(epoch_of(text), StoreError) << text;
}

// Whatever happens in whatever order: an epoch has a size that is allowed, names nobody twice, keeps the survivors'
// order, and has nobody who is gone.
TEST(RosterTest, PropertiesOfEveryEpochUnderRandomEvents) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int min = 1 + static_cast<int>(random() % 3);
    const int max = min + static_cast<int>(random() % 4);
    Bench bench({.min = min, .max = max, .first = min});
    for (int i = 0; i < 300; ++i) {
      const std::int64_t before = bench.roster.epoch;
      const Numbers old = bench.roster.current;
      const auto member = static_cast<std::int64_t>(1 + random() % static_cast<unsigned>(bench.events + 1));
      switch (random() % 11) {
        case 0:
          bench.join("net", std::to_string(random() % 4));
          break;
        case 10:
          bench.tell(Unreachable{member, bench.roster.epoch,
                                 static_cast<std::int64_t>(1 + random() % static_cast<unsigned>(bench.events + 1))});
          break;
        case 7:
          bench.tell(Joined{"someone", "1.0", "net", "", true});
          break;
        case 8:
          bench.tell(CaughtUp{member, bench.roster.epoch});
          break;
        case 1:
          bench.tell(Died{member, "was killed"});
          break;
        case 2:
          bench.tell(Leaving{member});
          break;
        case 3:
          bench.tell(Left{member});
          break;
        case 4:
          bench.tell(StoreRestored{});
          break;
        default:
          bench.tell(Ready{member, bench.roster.epoch});
      }
      ASSERT_TRUE(bench.stops_for_newcomers()) << "seed " << seed << ", event " << i;
      if (bench.roster.epoch == before) continue;
      ASSERT_EQ(bench.roster.epoch, before + 1);
      const Numbers now = bench.members();
      ASSERT_GE(static_cast<int>(now.size()), min);
      ASSERT_LE(static_cast<int>(now.size()), max);
      Numbers survivors;
      for (const std::int64_t number : old) {
        if (std::find(now.begin(), now.end(), number) != now.end()) survivors.push_back(number);
      }
      ASSERT_EQ(Numbers(now.begin(), now.begin() + static_cast<std::ptrdiff_t>(survivors.size())), survivors);
      ASSERT_EQ(std::set<std::int64_t>(now.begin(), now.end()).size(), now.size());
      for (const std::int64_t number : now)
        ASSERT_EQ(bench.roster.members.at(number).standing, Roster::Standing::running);
    }
  }
}

// A slow member is out of the next epoch, also when the epoch breaks before it leaves.
TEST(RosterTest, ASlowMemberIsDroppedWhereThatIsAsked) {
  for (const bool drop : {false, true}) {
    Bench bench({.min = 2, .max = 3, .first = 3});
    const auto a = bench.join();
    const auto b = bench.join();
    const auto c = bench.join();
    bench.tell(Slow{b, 1, 7, 30, 10, drop});
    EXPECT_EQ(bench.value_of(change_key(1)), drop ? "1" : "");
    EXPECT_EQ(bench.value_of(dropped_key(b)), drop ? "1" : "");
    for (const auto member : {a, b, c}) bench.ready(member);
    EXPECT_EQ(bench.members(), drop ? (Numbers{a, c}) : (Numbers{a, b, c}));
  }
}

TEST(RosterTest, NobodyIsDroppedWhenTooFewOthersStay) {
  const auto dropped_after = [](const std::vector<Event>& before) {
    Bench bench({.min = 2, .max = 4, .first = 4});
    for (int i = 0; i < 4; ++i) bench.join();
    for (const Event& event : before) bench.tell(event);
    bench.tell(Slow{1, 1, 7, 30, 10, true});
    return !bench.value_of(dropped_key(1)).empty();
  };
  EXPECT_TRUE(dropped_after({}));
  EXPECT_TRUE(dropped_after({Died{2, "was killed"}}));
  EXPECT_TRUE(dropped_after({Slow{2, 1, 7, 30, 10, true}}));
  EXPECT_TRUE(dropped_after({Leaving{2}}));
  EXPECT_FALSE(dropped_after({Died{2, "was killed"}, Slow{3, 1, 7, 30, 10, true}}));
  EXPECT_FALSE(dropped_after({Leaving{2}, Leaving{3}}));
  EXPECT_FALSE(dropped_after({Leaving{2}, Slow{3, 1, 7, 30, 10, true}}));
}

TEST(RosterTest, ASlowMemberOfAnEarlierEpochStays) {
  Bench bench({.min = 1, .max = 3, .first = 2});
  const auto a = bench.join();
  const auto b = bench.join();
  bench.ready(a);
  bench.ready(b);
  EXPECT_EQ(bench.roster.epoch, 2);
  bench.tell(Slow{a, 1, 7, 30, 10, true});
  EXPECT_EQ(bench.value_of(dropped_key(a)), "");
}

}  // namespace
}  // namespace gradwire::membership::roster_test
