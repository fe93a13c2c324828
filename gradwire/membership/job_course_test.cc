// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/job_course.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/base/strings.h"

namespace gradwire::membership::job_course_test {
namespace {

JobCourse course_of(const std::vector<Event>& events) {
  JobCourse course;
  for (std::int64_t number = 1; const Event& event : events) course.add(number++, event);
  return course;
}

TEST(JobCourseTest, DeathsInARowCountUntilTheJobComesFurther) {
  std::vector<Event> events{Began{1, 1, 0}, Began{2, 1, 0}, Died{1, "ended"}, Began{2, 2, 0}, Began{3, 2, 0}};
  EXPECT_EQ(course_of(events).furthest_step(), 0);
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 1) << "the second epoch begins with the same step";
  events.insert(events.end(), {Died{3, "ended"}, Died{2, "ended"}});
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 3);
  events.emplace_back(Began{4, 3, 1});
  EXPECT_EQ(course_of(events).furthest_step(), 1);
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 2) << "the second epoch came to step 1, and died there";
  events.emplace_back(Reached{4, 3, 2});
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 0);
}

// The log tells of few steps of an epoch, so the step of a death is known when the next epoch begins.
TEST(JobCourseTest, ADeathIsOneOfTheStepAtWhichItsEpochBroke) {
  std::vector<Event> events{Began{1, 1, 0}, Began{2, 1, 0}, Reached{1, 1, 4}, Died{1, "failed"}, Began{2, 2, 7}};
  EXPECT_EQ(course_of(events).furthest_step(), 7);
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 1);
  EXPECT_EQ(course_of(events).row_epoch(), 1) << "the first death of the row was in the first epoch";
  events.insert(events.end(), {Died{2, "failed"}, Began{3, 3, 7}});
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 2);
  EXPECT_EQ(course_of(events).row_epoch(), 1);
  EXPECT_EQ(course_of(events).epoch(), 3);
  events.emplace_back(Reached{3, 3, 8});
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 0);
  EXPECT_EQ(course_of(events).row_epoch(), 3);
}

TEST(JobCourseTest, AHostThatIsLostIsOneDeathHoweverManyMembersItHad) {
  std::vector<Event> events;
  for (std::int64_t member = 1; member <= 20; ++member) events.emplace_back(Began{member, 1, 0});
  for (std::int64_t member = 5; member <= 20; ++member) events.emplace_back(Died{member, "", member < 13 ? "1" : "2"});
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 2);
  events.insert(events.end(), {Died{1, "failed"}, Died{2, "failed"}});
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 4);
}

// A death at the beginning, then an epoch of many steps: the next death is not another one at the same step.
TEST(JobCourseTest, AJobComesFurtherWithinAnEpochToo) {
  std::vector<Event> events{Began{1, 1, 0}, Began{2, 1, 0}, Died{1, "ended"}, Began{2, 2, 0}, Reached{2, 2, 1}};
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 0);
  events.insert(events.end(), {Reached{2, 2, 2}, Reached{2, 2, 4}, Died{2, "ended"}});
  EXPECT_EQ(course_of(events).furthest_step(), 4);
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 1);
  events.insert(events.end(), {Began{3, 3, 0}, Reached{3, 3, 1}, Died{3, "ended"}});
  EXPECT_EQ(course_of(events).deaths_in_a_row(), 2) << "it was at step 4 already";
}

TEST(JobCourseTest, AProcessThatHasBegunNoStepOrHasLeftIsNoDeathInTheRow) {
  EXPECT_EQ(course_of({Began{1, 1, 5}, Died{2, "ended"}, Left{1}, Died{1, "ended"}}).deaths_in_a_row(), 0);
  EXPECT_EQ(course_of({Began{1, 1, 5}, Died{1, "ended"}, Died{1, "was not heard of"}}).deaths_in_a_row(), 1);
  EXPECT_EQ(course_of({Began{1, 1, 5}, Died{1, kLeftWaiting}}).deaths_in_a_row(), 0);
}

TEST(JobCourseTest, TellsHowTheJobHasEnded) {
  EXPECT_FALSE(course_of({Began{1, 1, 0}}).has_finished());
  EXPECT_TRUE(course_of({Done{1}}).has_finished());
  EXPECT_FALSE(course_of({Done{1}}).has_lost_state());
  EXPECT_TRUE(course_of({StateLost{1, 1}}).has_lost_state());
  EXPECT_FALSE(course_of({Done{1}, StateLost{2, 1}}).has_lost_state()) << "the result is there";
}

TEST(JobCourseTest, TheFinishersAreTheProcessesOfTheLastEpoch) {
  const auto joined = [](int process, const std::string& host) {
    return Joined{.identity = concat("kernel ", process, " 1"), .version = "", .program = "", .host = host};
  };
  std::vector<Event> events{joined(11, ""), joined(12, ""), joined(13, "b"),  joined(14, ""), Began{1, 1, 0},
                            Began{2, 1, 0}, Began{3, 1, 0}, Died{2, "ended"}, Began{1, 2, 5}, Began{3, 2, 5}};
  EXPECT_FALSE(course_of(events).has_finished_with("", 11)) << "the job goes on";
  events.insert(events.end(), {Done{1}, Died{1, "ended"}, Done{3}});
  const JobCourse course = course_of(events);
  EXPECT_TRUE(course.has_finished_with("", 11)) << "it has died after the last step";
  EXPECT_TRUE(course.has_finished_with("b", 13));
  EXPECT_FALSE(course.has_finished_with("", 13)) << "the process of another host";
  EXPECT_FALSE(course.has_finished_with("", 12)) << "it died before";
  EXPECT_FALSE(course.has_finished_with("", 14)) << "it came too late";
}

}  // namespace
}  // namespace gradwire::membership::job_course_test
