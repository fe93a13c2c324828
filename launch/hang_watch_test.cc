// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Who is killed, and who is not, from tables as the ranks of an elastic job would have recorded them. No clock.
#include "launch/hang_watch.h"

#include <gtest/gtest.h>

#include <utility>

#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

using observe::CallKind;
using observe::CallRow;
using observe::FaultClass;
using observe::GroupTable;
using observe::Outcome;
using observe::RankTable;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNow = 1000 * kSecond;

// A job of three ranks in epoch 7, which began with other processes. The order of the members is not that of the ranks.
class ElasticJob {
 public:
  ElasticJob() {
    for (int rank = 0; rank < 3; ++rank) {
      RankTable table;
      table.rank = rank;
      table.world = 3;
      table.pid = 100 + rank;
      table.started = 10 * kSecond;
      table.process.seen = true;
      table.process.state = 'S';
      table.process.system_call = "futex";
      tables.push_back(table);
      running.push_back({table.pid, 9 * kSecond});
      groups.push_back(table.pid);
    }
    members = EpochMembers{{4, 102}, {5, 100}, {6, 101}};
    for (const int rank : {0, 1, 2}) call(rank, "epoch 7", place_of(rank), 3, Outcome::good);
  }

  static int place_of(int rank) { return (rank + 1) % 3; }

  CallRow& call(int rank, const std::string& path, int place, int size, Outcome outcome) {
    auto& of_rank = tables[static_cast<std::size_t>(rank)].groups;
    if (of_rank.empty() || of_rank.back().path != path) of_rank.push_back({path, "shm", "", place, size, false, 0, {}});
    GroupTable& group = of_rank.back();
    CallRow row;
    row.ticket = group.next_ticket++;
    row.sequence = row.ticket + 1;
    row.kind = CallKind::all_reduce;
    row.dtype = 2;
    row.count = 8;
    row.called = kNow - 20 * kSecond;
    row.outcome = outcome;
    if (outcome != Outcome::none) row.ended = row.called + 1;
    group.calls.push_back(row);
    return group.calls.back();
  }
  void wait(int rank) { call(rank, "epoch 7", place_of(rank), 3, Outcome::none); }
  RankTable& at(int rank) { return tables[static_cast<std::size_t>(rank)]; }

  // What the second of two looks shows.
  std::optional<HangAnswer> answer() const {
    HangWatch watch(Milliseconds(10'000), "here");
    const PresentEpoch epoch = present_epoch(tables, running, [&](std::int64_t number) {
      EXPECT_EQ(number, 7);
      return members;
    });
    const auto found = observe::diagnose(tables_of(epoch, tables), {.now = kNow, .bound = 10 * kSecond});
    const HangSight sight{found, epoch, tables, running, groups, 20 * kSecond};
    EXPECT_FALSE(watch.judge(sight)) << "one look is not enough";
    return watch.judge(sight);
  }
  void expect_killed(int rank, const std::string& why) const {
    const auto found = answer();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->kill, rank) << found->text;
    EXPECT_NE(found->text.find(why), std::string::npos) << found->text;
  }
  void expect_nobody(const std::string& why) const {
    const auto found = answer();
    ASSERT_TRUE(found);
    EXPECT_FALSE(found->kill) << found->text;
    EXPECT_EQ(found->text,
              concat("gradwire-run: the job stands still for 20 s, and --replace-stalled kills nobody: ", why, "\n"));
  }

  std::vector<RankTable> tables;
  std::vector<RunningRank> running;
  std::vector<int> groups;
  std::optional<EpochMembers> members;
};

TEST(HangWatchTest, ARankThatIsStoppedBlockedOrComputesIsKilled) {
  const std::vector<std::pair<char, std::string>> states = {
      {'T', "stopped"}, {'R', "slow"}, {'S', "blocked"}, {'D', "blocked"}};
  for (const auto& [state, name] : states) {
    for (const int cause : {0, 1, 2}) {
      ElasticJob job;
      for (const int rank : {0, 1, 2}) {
        if (rank != cause) job.wait(rank);
      }
      job.at(cause).process.state = state;
      job.at(cause).process.system_call = "read";
      if (state == 'R') job.at(cause).process.system_call.clear();
      const std::int64_t member = 4 + ElasticJob::place_of(cause);
      job.expect_killed(cause, concat("gradwire-run: rank ", cause, " (member ", member, ", process ", 100 + cause,
                                      " on host here) keeps the others waiting (", name,
                                      "): no call has begun or ended for 20 s; gradwire-run kills it"));
    }
  }
}

TEST(HangWatchTest, AMemberThatHasNotOpenedTheGroupOfTheEpochIsKnownByItsPlace) {
  ElasticJob job;
  for (const int rank : {0, 2}) job.wait(rank);
  job.at(1).groups.clear();
  job.at(1).process.state = 'T';
  job.expect_killed(1, "(member 6, process 101 on host here)");
}

// As where it hangs before its first bucket of the epoch: DDP's lanes have duplicates of the group.
TEST(HangWatchTest, SoIsOneThatHasNotOpenedADuplicate) {
  ElasticJob job;
  for (const int rank : {0, 2}) job.call(rank, "epoch 7.dup2", ElasticJob::place_of(rank), 3, Outcome::none);
  job.at(1).process.state = 'R';
  job.at(1).process.system_call.clear();
  job.expect_killed(1, "(member 6, process 101 on host here) keeps the others waiting (slow)");
}

// Rank 1 was replaced, and its new process is still starting. The members of epoch 7 are ranks 0 and 2, and rank 2
// hangs.
TEST(HangWatchTest, ANewProcessThatIsNoMemberYetIsNotTakenForTheOneThatIsMissed) {
  for (const char state : {'?', 'T', 'R'}) {  // of the new process; '?': it has recorded nothing yet
    ElasticJob job;
    for (RankTable& table : job.tables) table.groups.clear();
    job.members = EpochMembers{{4, 102}, {5, 100}};
    // A call of epoch 6 that failed when rank 1 died.
    for (const int rank : {0, 1, 2})
      job.call(rank, "epoch 6", rank, 3, rank == 1 ? Outcome::none : Outcome::peer).called = kNow - 100 * kSecond;
    job.call(0, "epoch 7", 1, 2, Outcome::good);
    job.call(2, "epoch 7", 0, 2, Outcome::good);
    job.call(0, "epoch 7", 1, 2, Outcome::none);
    job.at(2).process.state = 'R';
    job.running[1] = {201, 15 * kSecond};
    job.groups[1] = -1;  // what the file holds is of process 101
    if (state != '?') {
      job.at(1).groups.clear();
      job.at(1).pid = job.groups[1] = 201;
      job.at(1).started = 16 * kSecond;
      job.at(1).process.state = state;
      const auto of_tables_alone = observe::diagnose(job.tables, {.now = kNow, .bound = 10 * kSecond});
      EXPECT_EQ(of_tables_alone.culprits, std::vector<int>{2}) << "a diagnosis goes by the newest epoch by itself";
    }
    job.expect_killed(2, "(member 4, process 102 on host here) keeps the others waiting (slow)");
  }
}

// The members of this host wait for one of another host, which has as many members as the epoch has places left.
TEST(HangWatchTest, NobodyIsKilledForAMemberOfAnotherHost) {
  ElasticJob job;
  job.members = EpochMembers{{4, 102}, {5, 100}, {6, 0}};
  for (const int rank : {0, 2}) job.wait(rank);
  job.at(1).groups.clear();  // starting; member 7, which is in no epoch yet
  job.at(1).process.state = 'R';
  job.expect_nobody("the calls of this host's ranks do not show which rank is the cause");
}

// Rank 1 died while the members of epoch 7 met. Rank 0 had come through, and its first call failed; rank 2 had not.
// Both are ready for the next epoch, which waits for a new process.
TEST(HangWatchTest, NobodyIsKilledWhoIsReadyAfterAnEpochThatBrokeAsItsMembersMet) {
  ElasticJob job;
  for (RankTable& table : job.tables) table.groups.clear();
  for (const int rank : {0, 1, 2}) job.call(rank, "epoch 6", rank, 3, Outcome::good);
  job.call(0, "epoch 7", 1, 3, Outcome::peer);
  job.running[1] = {201, 15 * kSecond};
  job.groups[1] = -1;
  const auto found = job.answer();
  EXPECT_FALSE(found && found->kill) << found->text;
}

// Groups that the program made count too.
TEST(HangWatchTest, CallsInGroupsOfTheProgramsOwnAreSeen) {
  ElasticJob two_groups;
  two_groups.call(0, "mine", 0, 3, Outcome::none);
  for (const int rank : {1, 2}) two_groups.wait(rank);
  const auto found = two_groups.answer();
  EXPECT_FALSE(found && found->kill) << found->text;

  ElasticJob stopped;
  for (const int rank : {0, 1, 2}) stopped.call(rank, "mine", rank, 3, Outcome::good);
  for (const int rank : {0, 2}) stopped.call(rank, "mine", rank, 3, Outcome::none);
  stopped.at(1).process.state = 'T';
  stopped.expect_killed(1, "keeps the others waiting (stopped)");
}

TEST(HangWatchTest, NobodyIsKilledWhereThatDoesNotHelpOrIsNotCertain) {
  ElasticJob several;
  several.wait(0);
  several.at(1).process.state = several.at(2).process.state = 'T';
  several.expect_nobody("the diagnosis names ranks 1, 2, and not one rank");

  ElasticJob shape;
  for (const int rank : {0, 1, 2}) shape.wait(rank);
  shape.at(1).groups.back().calls.back().count = 9;
  shape.expect_nobody("what is wrong (other shape) is not mended by a new process");

  ElasticJob network;
  for (const int rank : {0, 1, 2}) {
    network.wait(rank);
    network.at(rank).groups.back().backend = "hybrid";
  }
  network.expect_nobody("what is wrong (network gone) is not mended by a new process");

  ElasticJob traced;
  for (const int rank : {0, 2}) traced.wait(rank);
  traced.at(1).process.state = 't';
  traced.expect_nobody("a debugger holds rank 1");

  ElasticJob other_process = traced;
  other_process.at(1).process.state = 'T';
  other_process.groups[1] = 4711;
  other_process.expect_nobody(
      "the calls of rank 1 were recorded by process 101, which does not belong to the process group that gradwire-run "
      "started (101)");

  ElasticJob no_members = other_process;
  no_members.groups[1] = 101;
  no_members.members.reset();
  no_members.expect_nobody("the members of epoch 7 are not known here");
}

TEST(HangWatchTest, AJobInWhichNobodyWaitsIsLeftAlone) {
  ElasticJob job;
  job.at(1).process.state = 'R';
  EXPECT_FALSE(job.answer());
}

TEST(HangWatchTest, TimeInWhichThisProcessDidNotRunDoesNotCount) {
  using std::chrono::seconds;
  HangWatch watch(seconds(10), "here");
  HangWatch::Time at{std::chrono::hours(1)};
  const Milliseconds pause = seconds(2);
  EXPECT_FALSE(watch.look(at, kNow, pause));
  // An hour counts as two pauses.
  EXPECT_FALSE(watch.look(at += std::chrono::hours(1), kNow, pause));
  EXPECT_FALSE(watch.look(at += seconds(2), kNow, pause));
  EXPECT_FALSE(watch.look(at += seconds(2), kNow, pause));
  EXPECT_TRUE(watch.look(at += seconds(2), kNow, pause));
  EXPECT_FALSE(watch.look(at += seconds(2), kNow + 1, pause)) << "a call has ended";
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(watch.look(at += seconds(2), kNow + 1, pause));
  watch.forget();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(watch.look(at += seconds(2), kNow + 1, pause));
  EXPECT_TRUE(watch.look(at += seconds(2), kNow + 1, pause));
}

TEST(HangWatchTest, AnObjectionIsToldOnceInAStandstill) {
  ElasticJob job;
  job.wait(0);
  job.at(1).process.state = job.at(2).process.state = 'T';
  const PresentEpoch epoch = present_epoch(job.tables, job.running, [&](std::int64_t) { return job.members; });
  const auto found = observe::diagnose(tables_of(epoch, job.tables), {.now = kNow, .bound = 10 * kSecond});
  const HangSight sight{found, epoch, job.tables, job.running, job.groups, 20 * kSecond};
  HangWatch watch(Milliseconds(10'000), "here");
  int told = 0;
  for (int look = 0; look < 10; ++look) told += watch.judge(sight).has_value() ? 1 : 0;
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace gradwire::launch
