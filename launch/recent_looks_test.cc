// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/recent_looks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

#include "gradwire/base/strings.h"

namespace gradwire::launch::recent_looks_test {
namespace {

constexpr std::int64_t kMilli = 1'000'000;

RecentLooks::Time at(std::int64_t milliseconds) { return RecentLooks::Time(std::chrono::milliseconds(milliseconds)); }

// A process that began its first step 20.3 s after a launcher started it, and whose steps follow each other.
class Process {
 public:
  explicit Process(std::int64_t opened = 1) { sums_.opened = opened; }
  // The next step takes so long.
  void step(std::int64_t milliseconds) {
    if (sums_.begin == 0) sums_.begin = kBegin * kMilli;
    sums_.end = std::max(sums_.begin, sums_.end) + milliseconds * kMilli;
    ++sums_.totals.steps;
    sums_.totals.whole += milliseconds * kMilli;
    sums_.totals.split.compute += milliseconds * kMilli;
  }
  std::int64_t next() const { return std::max(kBegin, sums_.end / kMilli); }  // when the next step begins
  const observe::RunSums& sums() const { return sums_; }

 private:
  static constexpr std::int64_t kBegin = 20'300;
  observe::RunSums sums_;
};

// Looks once a second up to `end`, while each step takes `step(its number from 1)` milliseconds. Calls `check` after
// each look with the time and the number of steps that had ended.
void look_each_second(RecentLooks& looks, std::int64_t end,
                      const std::function<std::int64_t(std::int64_t number)>& step,
                      const std::function<void(std::int64_t time, std::int64_t steps, const LiveRank& rank)>& check) {
  Process process;
  for (std::int64_t time = 1000; time <= end; time += 1000) {
    std::int64_t steps = static_cast<std::int64_t>(process.sums().totals.steps);
    for (; process.next() + step(steps + 1) <= time; ++steps) process.step(step(steps + 1));
    looks.add({process.sums(), at(time)});
    check(time, steps, looks.rank(3, at(time)));
  }
}

TEST(RecentLooks, StepsLongerThanTheTimeBetweenLooksHaveTheirRate) {
  for (const std::int64_t milliseconds : {200, 1000, 1300, 3000, 4999, 7000, 40'000}) {
    RecentLooks looks;
    look_each_second(
        looks, 300'000, [&](std::int64_t) { return milliseconds; },
        [&](std::int64_t time, std::int64_t steps, const LiveRank& rank) {
          const std::string where = concat("steps of ", milliseconds, " ms, at ", time, " ms");
          ASSERT_EQ(rank.any_steps, steps > 0) << where;
          if (steps == 0) return;
          ASSERT_NEAR(rank.steps_per_second, 1000.0 / static_cast<double>(milliseconds), 1e-9) << where;
          ASSERT_NEAR(rank.step, static_cast<double>(milliseconds) / 1000, 1e-9) << where;
        });
  }
}

TEST(RecentLooks, AChangeOfPaceShowsAfterAFewSeconds) {
  RecentLooks looks;
  look_each_second(
      looks, 90'000, [](std::int64_t number) { return number <= 200 ? 100 : 400; },
      [](std::int64_t time, std::int64_t, const LiveRank& rank) {
        // The first 200 steps end 40.3 s after the start.
        if (time > 21'000 && time < 40'000) {
          ASSERT_NEAR(rank.steps_per_second, 10, 1e-9) << time;
        } else if (time >= 47'000) {
          ASSERT_NEAR(rank.steps_per_second, 2.5, 1e-9) << time;
        }
      });
}

TEST(RecentLooks, ARankThatStandsStillHasNoStepLately) {
  Process process;
  process.step(100);
  RecentLooks looks;
  looks.add({process.sums(), at(21'000)});
  process.step(100);
  looks.add({process.sums(), at(22'000)});
  looks.add({process.sums(), at(27'000)});
  EXPECT_NEAR(looks.rank(0, at(27'000)).steps_per_second, 10, 1e-9);
  observe::RunSums stuck = process.sums();
  stuck.phase = observe::StepPhase::wait;
  looks.add({stuck, at(28'000)});
  const LiveRank rank = looks.rank(0, at(28'000));
  EXPECT_FALSE(rank.any_steps);
  EXPECT_EQ(rank.now->totals.steps, 2);
  EXPECT_EQ(rank.now->phase, observe::StepPhase::wait) << "as the newest look has it";
  // Steps of 10 s: such a rank is late after 30 s.
  Process slow;
  slow.step(10'000);
  looks = {};
  looks.add({slow.sums(), at(30'300)});
  EXPECT_TRUE(looks.rank(0, at(60'000)).any_steps);
  EXPECT_FALSE(looks.rank(0, at(61'000)).any_steps);
}

TEST(RecentLooks, ANewProcessInThePlaceOfTheOldBeginsAtZero) {
  RecentLooks looks;
  Process old;
  for (int i = 0; i < 50; ++i) old.step(100);
  looks.add({old.sums(), at(26'000)});
  Process young(2);
  for (int i = 0; i < 60; ++i) young.step(50);
  looks.add({young.sums(), at(27'000)});
  const LiveRank rank = looks.rank(0, at(27'000));
  EXPECT_NEAR(rank.steps_per_second, 20, 1e-9);
  EXPECT_NEAR(rank.compute, 0.05, 1e-9);
}

TEST(RecentLooks, WithoutALookTheRankHasNotBegun) {
  const LiveRank rank = RecentLooks().rank(4, at(1000));
  EXPECT_EQ(rank.rank, 4);
  EXPECT_FALSE(rank.now);
  EXPECT_FALSE(rank.any_steps);
}

}  // namespace
}  // namespace gradwire::launch::recent_looks_test
