// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// When deaths end an elastic job, and which of them is told first.
#include "launch/elastic_watch.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/output.h"
#include "tests/support/no_descriptors.h"

namespace gradwire::launch::elastic_watch_test {
namespace {

using membership::Began;
using membership::Died;

const ProcessEnd kSeven{false, 7, false};

// Ranks whose deaths the test makes up: their processes run until the test has ended.
class ElasticWatchTest : public ::testing::Test {
 protected:
  ElasticWatchTest() {
    options_.ranks = 2;
    ranks_.start(commands_);
  }
  ElasticView view(int deaths_per_minute) {
    ElasticView view;
    view.deaths_per_minute = deaths_per_minute;
    view.course = [this] { return course_; };
    return view;
  }
  pid_t process_of(int rank) const { return ranks_.processes()[static_cast<std::size_t>(rank)].pid; }
  // A rank's process becomes a member, and begins step 0 in the first epoch; returns its number.
  std::int64_t join(pid_t process, const std::string& host = "") {
    tell(membership::Joined{.identity = concat("kernel ", process, " 1"), .version = "", .program = "", .host = host});
    const std::int64_t member = events_;
    tell(Began{member, 1, 0});
    return member;
  }
  // The rank ends and writes `text` to stderr.
  ElasticWatch::Answer die(ElasticWatch& watch, int rank, const std::string& text) {
    const pid_t process = process_of(rank);
    ranks_.signal(rank, SIGKILL);
    ranks_.reap_rank(rank);
    return watch.on_rank_death(process, {.rank = rank, .end = kSeven, .after = {}, .last_lines = {}, .error_file = ""},
                               [text] { return std::vector<std::string>{text}; });
  }

  // The next event of the job's log.
  void tell(const membership::Event& event) { course_.add(++events_, event); }

  const SignalQueue signals_;
  Options options_;
  const std::vector<RankCommand> commands_{2, RankCommand{{"/bin/sleep", "60"}, {}, -1}};
  DeathWatch deaths_;
  Output output_{options_, {}};
  RankSet ranks_{options_, signals_, 0, output_, deaths_};
  membership::JobCourse course_;
  std::int64_t events_ = 0;
};

TEST_F(ElasticWatchTest, DeathsWithoutProgressEndTheJobHoweverFarApartTheyAre) {
  ElasticWatch watch(view(3), signals_, ranks_, deaths_);
  tell(Began{1, 1, 7});
  EXPECT_TRUE(die(watch, 0, "the cause").is_replaced);
  for (const std::int64_t member : {1, 2, 3, 4}) {
    tell(Began{member, member, 7});
    tell(Died{member, "ended"});
  }
  const ElasticWatch::Answer answer = die(watch, 1, "the last");
  EXPECT_FALSE(answer.goes_on);
  EXPECT_NE(answer.text.find("that is death 4 of a member since the job last came further, which was to step 7, more "
                             "than --deaths-per-minute 3"),
            std::string::npos)
      << answer.text;
  const auto first = watch.first_of_row();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->rank, 0);
  EXPECT_EQ(first->last_lines, std::vector<std::string>{"the cause"});
}

TEST_F(ElasticWatchTest, ADeathAfterWhichTheJobCameFurtherIsNotTheCause) {
  ElasticWatch watch(view(2), signals_, ranks_, deaths_);
  tell(Began{1, 1, 7});
  EXPECT_TRUE(die(watch, 0, "long ago").is_replaced);
  tell(Began{1, 2, 8});
  tell(membership::Reached{1, 2, 9});
  EXPECT_TRUE(die(watch, 1, "the cause").is_replaced);
  const ElasticWatch::Answer answer = die(watch, 0, "the last");
  EXPECT_FALSE(answer.goes_on);
  EXPECT_NE(answer.text.find("that is death 3 within a minute"), std::string::npos) << answer.text;
  ASSERT_TRUE(watch.first_of_row());
  EXPECT_EQ(watch.first_of_row()->last_lines, std::vector<std::string>{"the cause"});
}

// The first of several deaths at one step breaks the epoch, and only the next epoch tells at which step that was.
TEST_F(ElasticWatchTest, TheFirstOfSeveralDeathsAtAStepIsTheCause) {
  ElasticWatch watch(view(2), signals_, ranks_, deaths_);
  tell(Began{1, 1, 0});
  tell(Began{2, 1, 0});
  EXPECT_TRUE(die(watch, 0, "the cause").is_replaced);
  tell(Died{1, "ended"});
  tell(Began{2, 2, 5});
  EXPECT_TRUE(die(watch, 1, "the second").is_replaced);
  EXPECT_FALSE(die(watch, 0, "the last").goes_on);
  ASSERT_TRUE(watch.first_of_row());
  EXPECT_EQ(watch.first_of_row()->last_lines, std::vector<std::string>{"the cause"});
}

// A host that has joined the job reads its log from time to time, and when the store is asked.
TEST_F(ElasticWatchTest, WhatCameOfTheJobSinceTheLastLookCounts) {
  tell(Began{1, 1, 7});
  for (const std::int64_t member : {1, 2, 3, 4}) {
    tell(Began{member, member, 7});
    tell(Died{member, "ended"});
  }
  ElasticView asks = view(3);
  asks.answers = [this] {
    tell(membership::Reached{5, 5, 100});
    return true;
  };
  ElasticWatch watch(std::move(asks), signals_, ranks_, deaths_);
  EXPECT_TRUE(die(watch, 0, "much later").is_replaced);
}

TEST_F(ElasticWatchTest, AJobOfWhichNobodyHoldsTheStateEndsAtOnce) {
  ElasticWatch watch(view(100), signals_, ranks_, deaths_);
  tell(membership::StateLost{2, 2});
  const ElasticWatch::Answer answer = die(watch, 0, "no state");
  EXPECT_FALSE(answer.goes_on);
  EXPECT_NE(answer.text.find("no member holds the state of the job any more"), std::string::npos) << answer.text;
  EXPECT_FALSE(watch.first_of_row()) << "there was one death only";
}

// Its process had the result, and did not bring it to its end: another process would not have it.
TEST_F(ElasticWatchTest, ARankThatFailsAfterTheLastStepIsNotReplacedAndFailsTheJob) {
  ElasticWatch watch(view(0), signals_, ranks_, deaths_);
  const std::int64_t member = join(process_of(0));
  tell(membership::Done{member});
  const ElasticWatch::Answer answer = die(watch, 0, "disk full");
  EXPECT_FALSE(answer.is_replaced);
  EXPECT_TRUE(answer.goes_on);
  EXPECT_TRUE(answer.fails_the_job);
  EXPECT_NE(answer.text.find("rank 0 died of exit code 7 after the job's last step was counted"), std::string::npos)
      << answer.text;
}

// The job has finished without these processes.
TEST_F(ElasticWatchTest, AProcessThatHadNoPartInTheLastStepMayFailAfterTheJob) {
  ElasticWatch watch(view(10), signals_, ranks_, deaths_);
  const std::int64_t lost = join(process_of(0));
  const std::int64_t other = join(process_of(1), "another host");
  tell(Died{lost, "killed"});
  tell(membership::Done{other});
  for (const int rank : {0, 1}) {
    const ElasticWatch::Answer answer = die(watch, rank, "killed");
    EXPECT_TRUE(answer.goes_on);
    EXPECT_FALSE(answer.fails_the_job);
  }
}

// No descriptor is left for it.
TEST_F(ElasticWatchTest, ACoordinatorThatCannotBeStartedIsNoRank) {
  ElasticView here = view(3);
  here.coordinator = RankCommand{{"/bin/true"}, {}, -1};
  ElasticWatch watch(std::move(here), signals_, ranks_, deaths_);
  std::string problem;
  try {
    const test_support::NoDescriptors none;
    watch.start();
  } catch (const LaunchError& error) {
    problem = error.what();
  }
  EXPECT_EQ(problem, "cannot make a pipe from the coordinator of the elastic job: Too many open files");
}

}  // namespace
}  // namespace gradwire::launch::elastic_watch_test
