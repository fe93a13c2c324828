// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision for jobs of several hosts: networks that fail, and clocks that differ.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/observe/diagnosis.h"
#include "gradwire/observe/diagnosis_test_support.h"

namespace gradwire::observe::diagnosis_test::hosts {
namespace {

TEST(Diagnosis, ANetworkThatIsGone) {
  for_each_cause([](Job& job, int cause) {
    for (RankTable& rank : job.ranks) rank.groups[0].backend = "ucx";
    for (int rank = 0; rank < job.size(); ++rank) {
      CallRow& call = job.call(rank, {}, rank == cause ? Outcome::timeout : Outcome::peer);
      call.ended = job.clock + kSecond;
      call.peers = rank == cause ? 0 : std::uint64_t{1} << cause;
      job.end(rank, 1, rank == 0 ? 0 : 1);
    }
    const Diagnosis found = job.over();
    expect(found, FaultClass::network, {cause});
  });
  // Two ranks that miss each other.
  Job job(2);
  for (int rank = 0; rank < 2; ++rank) {
    CallRow& call = job.call(rank, {}, Outcome::peer);
    call.peers = std::uint64_t{1} << (1 - rank);
    job.end(rank, 1, rank);
  }
  expect(job.over(), FaultClass::unknown, {});
  for (RankTable& rank : job.ranks) rank.groups[0].backend = "ucx";
  expect(job.over(), FaultClass::network, {});
}

// Ranks 2 and 3 are on a host whose clocks are ahead of or behind the others'.
void shift_second_host(Job& job, std::int64_t wall, std::int64_t monotonic) {
  for (const int rank : {2, 3}) {
    job.at(rank).wall_offset += wall - monotonic;
    for (CallRow& call : job.at(rank).groups[0].calls) {
      call.called += monotonic;
      call.ended += call.ended == 0 ? 0 : monotonic;
    }
  }
}

TEST(Diagnosis, ClocksOfHostsThatDifferMakeNobodyLate) {
  for (const std::int64_t wall : {0, 5, -5, 50}) {
    for (const std::int64_t monotonic : {0, 4000, -1}) {
      for (const bool has_history : {true, false}) {
        SCOPED_TRACE(concat("wall clock ", wall, " s, monotonic clock ", monotonic, " s, history ", has_history));
        Job job(4);
        for (RankTable& rank : job.ranks) {
          if (!has_history) rank.groups[0].calls.clear();
          rank.groups[0].backend = "ucx";
        }
        const std::int64_t start = job.clock;
        for (int rank = 0; rank < 4; ++rank) {
          CallRow& call = job.call(rank, {}, Outcome::peer);
          call.ended = start + 2 * kSecond;
          call.peers = rank < 2 ? 0b1100 : 0b0011;
          job.end(rank, 1, rank == 0 ? 0 : 1);
        }
        shift_second_host(job, wall * kSecond, monotonic * kSecond);
        EXPECT_EQ(name_of(job.over().fault), name_of(FaultClass::network));
      }
    }
  }
}

TEST(Diagnosis, ARankOfAnotherHostThatCameLateIsNamedWhereTheClocksShowIt) {
  for (const std::int64_t wall : {0, 5, -5, 50}) {
    for (const std::int64_t monotonic : {0, 4000, -1}) {
      for (const bool has_history : {true, false}) {
        SCOPED_TRACE(concat("wall clock ", wall, " s, monotonic clock ", monotonic, " s, history ", has_history));
        Job job(4);
        if (!has_history) {
          for (RankTable& rank : job.ranks) rank.groups[0].calls.clear();
        }
        job.others_call(3, Outcome::timeout);
        // Without calls of before, as much as the clocks may differ.
        job.clock += (has_history ? 2 : 200) * kSecond;
        job.call(3, {}, Outcome::peer);
        for (int rank = 0; rank < 4; ++rank) job.end(rank, 1, rank == 0 ? 0 : 1);
        job.at(3).process.state = 'R';
        shift_second_host(job, wall * kSecond, monotonic * kSecond);
        expect(job.over(), FaultClass::slow, {3});
      }
    }
  }
}

// By its wall clock, the late rank came first.
TEST(Diagnosis, ALateRankOfAHostWhoseClockIsBehindIsNamed) {
  Job job(3);
  job.others_call(2, Outcome::timeout);
  job.clock += 2 * kSecond;
  job.call(2, {}, Outcome::peer);
  for (int rank = 0; rank < 3; ++rank) job.end(rank, 1, rank == 0 ? 0 : 1);
  job.at(2).process.state = 'R';
  expect(job.over(), FaultClass::slow, {2});
  job.at(2).wall_offset -= 3 * kSecond;
  expect(job.over(), FaultClass::slow, {2});
}

// All ranks but 0 are on a host whose clock is ahead or behind. Rank 0 made another call in the first group, and what
// the ranks called in the second one follows from that.
TEST(Diagnosis, TheFirstOfTwoMismatchesIsFoundWhateverTheClocksOfHostsShow) {
  for (const std::int64_t wall : {0, 1, -1}) {
    SCOPED_TRACE(concat("wall clock ", wall, " s"));
    Job job(4);
    for (int rank = 0; rank < 4; ++rank) job.open(rank, "a second", rank, 4);
    job.call(0, {.count = 1, .line = 20}, Outcome::none);
    job.others_call(0, Outcome::none);
    job.clock += kSecond / 2;
    // In the second group rank 1 is wrong, so that rank 0, on the other host, is the first of those that are right.
    for (const int rank : {0, 2, 3}) job.call(rank, {.count = 5, .line = 31}, Outcome::none, 1);
    job.call(1, {.count = 7, .line = 30}, Outcome::none, 1);
    for (const int rank : {1, 2, 3}) job.at(rank).wall_offset += wall * kSecond;
    const Diagnosis found = job.stalled();
    EXPECT_EQ(found.group, "default");
    EXPECT_EQ(found.culprits, std::vector<int>{0});
  }
}

// No error yet: all ranks have made the call, and nothing comes of it.
TEST(Diagnosis, ACallOverANetworkThatAllRanksMadeAndThatStands) {
  Job job(3);
  for (int rank = 0; rank < 3; ++rank) job.call(rank, {}, Outcome::none);
  EXPECT_EQ(job.stalled().fault, FaultClass::unknown) << "there is no network on one host";
  for (int rank = 0; rank < 3; ++rank) job.at(rank).groups[0].backend = "ucx";
  const Diagnosis found = job.stalled();
  expect(found, FaultClass::network, {});
  ASSERT_TRUE(found.call.has_value());
}

}  // namespace
}  // namespace gradwire::observe::diagnosis_test::hosts
