// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision which hook to use, given times that a model makes up: it ends within 50 steps with a hook that is near
// the best, noise alone does not start a race, a change of the link does and the new choice is made within 20 steps,
// and a restored copy decides alike.
#include "gradwire/hooks/hook_race_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace gradwire::hook_race_test {
namespace {

using internal::HookRace;
using internal::StepTime;

constexpr double kCompute = 0.030;  // seconds of a step that no hook changes

// Steps of a training loop whose hooks take known times, with noise. The time of a step reaches the race one step late,
// and windows reach it as medians, as the hook does it.
class Loop {
 public:
  Loop(std::vector<double> costs, double noise, unsigned seed, std::size_t hooks = 0)
      : costs(std::move(costs)), race(hooks == 0 ? this->costs.size() : hooks), noise_(noise), random_(seed) {}

  void step() {
    const std::size_t hook = race.current();
    ++steps;
    if (costs.size() > used.size()) used.resize(costs.size());
    ++used[hook];
    if (before_ && is_known_ && (*before_ == hook || !race.settled())) window_.push_back(time_before_);
    if (race.begin_step() && before_) {
      race.add(*before_, internal::median_of(window_));
      window_.clear();
    } else if (!race.settled()) {
      window_.clear();
    }
    // Noise makes steps longer, never shorter than the work.
    const double cost = costs[hook] * (1 + noise_ * std::abs(normal_(random_)));
    time_before_ = {cost, kCompute + cost};
    before_ = hook;
    is_known_ = true;
  }
  // A job that goes on from a checkpoint: the times since the last exchange are lost.
  void resume() {
    HookRace copy(race.hooks());
    ASSERT_TRUE(copy.restore(race.save()));
    race = copy;
    is_known_ = false;
    window_.clear();
  }
  // Steps until the race is settled; at most 1,000.
  void settle() {
    for (int i = 0; i < 1000 && !race.settled(); ++i) step();
  }
  bool is_near_best(double share) const {
    const double best = *std::min_element(costs.begin(), costs.end());
    return costs[race.current()] - best <= share * (kCompute + best);
  }

  std::vector<double> costs;  // by hook; the test may change them between steps
  HookRace race;
  int steps = 0;
  std::vector<int> used;  // steps by hook

 private:
  const double noise_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::optional<std::size_t> before_;
  StepTime time_before_;
  bool is_known_ = false;  // time_before_
  std::vector<StepTime> window_;
};

TEST(HookRace, ARaceOfOneHookIsSettledAndWantsNoTimes) {
  HookRace race(1);
  EXPECT_TRUE(race.settled());
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(race.begin_step());
  EXPECT_EQ(race.current(), 0U);
}

TEST(HookRace, FindsAHookNearTheBestWithinFiftySteps) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.001, 0.1);
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::vector<double> costs;
    for (std::size_t hooks = 2 + seed % 5; costs.size() < hooks;) costs.push_back(cost(random));
    Loop loop(costs, 0.02, seed);
    loop.settle();
    ASSERT_TRUE(loop.race.settled()) << "seed " << seed;
    EXPECT_LE(loop.steps, 50) << "seed " << seed;
    EXPECT_TRUE(loop.is_near_best(0.03)) << "seed " << seed << " chose " << loop.race.current();
  }
}

TEST(HookRace, AllHooksAlikeTakeTheMostStepsAndTheFirstHookWins) {
  for (const std::size_t hooks : {2U, 3U, 6U}) {
    Loop loop(std::vector<double>(hooks, 0.01), 0, 1);
    loop.settle();
    EXPECT_EQ(loop.race.current(), 0U);
    EXPECT_LE(loop.steps, hooks == 6 ? 40 : 28);
  }
}

TEST(HookRace, ALaterHookMustSaveMoreThanTheGain) {
  const double step = kCompute + 0.020;
  Loop too_little({0.020 + 0.009 * step, 0.020}, 0, 1);
  too_little.settle();
  EXPECT_EQ(too_little.race.current(), 0U);
  Loop enough({0.020 + 0.011 * step, 0.020}, 0, 1);
  enough.settle();
  EXPECT_EQ(enough.race.current(), 1U);
}

TEST(HookRace, AHookThatIsFarBehindRunsForTwoSteps) {
  Loop loop({0.01, 0.5, 0.01, 0.4}, 0, 1);
  loop.settle();
  // One step until its time is known, and one that was under way by then.
  EXPECT_EQ(loop.used[1], 2);
  EXPECT_EQ(loop.used[3], 2);
  EXPECT_GT(loop.race.measured(1).cost, 0.4) << "a hook that ran has a time to report";
}

TEST(HookRace, NoiseStartsNoRace) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Loop loop({0.020, 0.040, 0.060}, 0.05, seed);
    loop.settle();
    const int others = loop.used[1] + loop.used[2];
    for (int i = 0; i < 3000; ++i) loop.step();
    EXPECT_EQ(loop.used[1] + loop.used[2], others) << "seed " << seed;
  }
}

TEST(HookRace, TheMoreStepsVaryTheLargerAChangeMustBe) {
  int used = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    Loop loop({0.040, 0.080, 0.080}, 0.5, seed);
    loop.settle();
    const int others = loop.used[1] + loop.used[2];
    for (int i = 0; i < 3000; ++i) loop.step();
    used += loop.used[1] + loop.used[2] - others;
  }
  EXPECT_LT(used, 60) << "of 60,000 steps";

  // A tenth of a step, in a job whose steps hardly vary.
  Loop quiet({0.020, 0.021, 0.050}, 0.01, 1);
  quiet.settle();
  ASSERT_EQ(quiet.race.current(), 0U);
  for (int i = 0; i < 60; ++i) quiet.step();
  quiet.costs = {0.026, 0.021, 0.050};
  for (int i = 0; i < 20; ++i) quiet.step();
  EXPECT_EQ(quiet.race.current(), 1U);
}

TEST(HookRace, ADisturbanceOfAFewStepsStartsNoRace) {
  for (int steps = 1; steps <= 3; ++steps) {
    for (int offset = 0; offset < 3; ++offset) {
      Loop loop({0.020, 0.040, 0.060}, 0.02, 1);
      loop.settle();
      for (int i = 0; i < 30 + offset; ++i) loop.step();
      const int others = loop.used[1] + loop.used[2];
      loop.costs = {0.200, 0.200, 0.200};
      for (int i = 0; i < steps; ++i) loop.step();
      loop.costs = {0.020, 0.040, 0.060};
      for (int i = 0; i < 60; ++i) loop.step();
      EXPECT_EQ(loop.used[1] + loop.used[2], others) << steps << " steps, offset " << offset;
    }
  }
}

// Whether the loop, after `costs` have become those of its hooks, has a hook near the best within 20 steps, and keeps
// it.
bool is_right_after_a_change(Loop& loop, const std::vector<double>& costs) {
  loop.costs = costs;
  for (int i = 0; i < 20; ++i) loop.step();
  bool stays = loop.race.settled();
  const std::size_t chosen = loop.race.current();
  for (int i = 0; i < 20; ++i, loop.step()) stays = stays && loop.race.current() == chosen;
  return stays && loop.is_near_best(0.03);
}

// Hooks of 32, 16 and 8 bits over a link. The backward pass hides what it can of sending and of the codec.
class LinkJob {
 public:
  explicit LinkJob(std::mt19937& random)
      : backward_(spread(random, 0.005, 0.2)), bytes_(spread(random, 1e6, 4e8)), codec_(spread(random, 0.3e9, 4e9)) {}

  std::vector<double> costs(double rate) const {
    const auto cost = [&](double share, double codec) {
      const double sends = bytes_ * share / rate + bytes_ * codec / codec_;
      return std::max(backward_ + 0.15 * sends, sends);
    };
    return {cost(1, 0), cost(0.5, 1), cost(0.25, 1.6)};
  }
  static double random_rate(std::mt19937& random) { return spread(random, 10e6, 2.5e9); }
  // At least three times `rate`, or a third at most.
  static double another_rate(std::mt19937& random, double rate) {
    for (;;) {
      const double other = random_rate(random);
      if (other > 3 * rate || rate > 3 * other) return other;
    }
  }

 private:
  static double spread(std::mt19937& random, double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>()(random));
  }

  double backward_, bytes_, codec_;  // seconds; bytes; bytes a second
};

// What is missed are changes by less than a tenth of a step, of which another hook would save a few percent.
TEST(HookRace, AfterTheRateChangesTheRightHookIsChosenWithinTwentySteps) {
  std::mt19937 random(7);
  constexpr int kJobs = 2000;
  int right = 0, needed = 0, right_of_needed = 0;
  for (unsigned seed = 0; seed < kJobs; ++seed) {
    const LinkJob job(random);
    const double rate = LinkJob::random_rate(random);
    Loop loop(job.costs(rate), 0.05, seed);
    loop.settle();
    for (unsigned i = 0; i < 40 + seed % 3; ++i) loop.step();
    loop.costs = job.costs(LinkJob::another_rate(random, rate));
    const bool needs_another = !loop.is_near_best(0.03);
    const bool is_right = is_right_after_a_change(loop, loop.costs);
    right += is_right ? 1 : 0;
    needed += needs_another ? 1 : 0;
    right_of_needed += needs_another && is_right ? 1 : 0;
  }
  EXPECT_GE(right, kJobs * 95 / 100);
  EXPECT_GE(needed, 800);
  EXPECT_GE(right_of_needed, needed * 92 / 100) << "of " << needed;
}

// Here the costs have nothing to do with each other. In a twentieth of the jobs the cost of the chosen hook remains
// about the same, so that the change is not seen.
TEST(HookRace, AfterAnyChangeTheRightHookIsChosenWithinTwentySteps) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.001, 0.1);
  constexpr int kJobs = 10000;
  int right = 0;
  for (unsigned seed = 0; seed < kJobs; ++seed) {
    Loop loop({cost(random), cost(random), cost(random)}, 0.05, seed);
    loop.settle();
    for (unsigned i = 0; i < 40 + seed % 3; ++i) loop.step();
    right += is_right_after_a_change(loop, {cost(random), cost(random), cost(random)}) ? 1 : 0;
  }
  EXPECT_GE(right, kJobs * 95 / 100);
}

TEST(HookRace, AChangeInTheMidstOfARaceIsSeen) {
  for (int steps = 1; steps <= 30; ++steps) {
    Loop loop({0.002, 0.006, 0.009}, 0.03, 1);
    loop.settle();
    for (int i = 0; i < 40; ++i) loop.step();
    loop.costs = {0.060, 0.050, 0.080};
    for (int i = 0; i < steps; ++i) loop.step();
    loop.costs = {0.200, 0.102, 0.055};
    for (int i = 0; i < 60; ++i) loop.step();
    EXPECT_EQ(loop.race.current(), 2U) << "changed again after " << steps << " steps";
  }
}

TEST(HookRace, OfTwoTimesTheShorterCounts) {
  const StepTime time = internal::median_of({{0.5, 0.7}, {0.1, 0.2}});
  EXPECT_EQ(time.cost, 0.1);
  EXPECT_EQ(time.step, 0.2);
}

TEST(HookRace, FollowsALinkThatBecomesSlowerAndFaster) {
  const std::vector<double> fast{0.002, 0.006, 0.009};
  const std::vector<double> slow{0.200, 0.102, 0.055};
  Loop loop(fast, 0.03, 1);
  loop.settle();
  ASSERT_EQ(loop.race.current(), 0U);
  for (int change = 0; change < 6; ++change) {
    for (int i = 0; i < 40; ++i) loop.step();
    const bool becomes_slow = change % 2 == 0;
    loop.costs = becomes_slow ? slow : fast;
    for (int i = 0; i < 20; ++i) loop.step();
    EXPECT_TRUE(loop.race.settled()) << "change " << change;
    EXPECT_EQ(loop.race.current(), becomes_slow ? 2U : 0U) << "change " << change;
  }
}

// The cost of computing jumps for 20,000 steps, and no jump changes which hook is best.
void jump_all_the_time(Loop& loop) {
  for (int i = 0; i < 20000; ++i) {
    const double more = (i / 12) % 2 == 0 ? 0 : 0.040;
    loop.costs = {0.010 + more, 0.030 + more, 0.050 + more};
    loop.step();
  }
}

TEST(HookRace, RacesThatChangeNothingBecomeRare) {
  Loop loop({0.010, 0.030, 0.050}, 0, 1);
  loop.settle();
  jump_all_the_time(loop);
  EXPECT_LT(loop.used[1] + loop.used[2], 200) << "of 20,000 steps";
}

// Three hooks that are alike, at first and again after a change that reaches all of them.
TEST(HookRace, NoiseSeldomChoosesALaterHookOfThoseThatAreAlike) {
  constexpr int kJobs = 1000;
  for (const double cost : {0.020, 0.040, 0.100}) {
    int left_at_first = 0, left_later = 0, raced_again = 0;
    for (unsigned seed = 0; seed < kJobs; ++seed) {
      Loop first({cost, cost, cost}, 0.05, seed);
      first.settle();
      left_at_first += first.race.current() != 0 ? 1 : 0;
      Loop loop({cost, 3 * cost, 3 * cost}, 0.05, seed);
      loop.settle();
      for (int i = 0; i < 40; ++i) loop.step();
      ASSERT_EQ(loop.race.current(), 0U);
      const int others = loop.used[1] + loop.used[2];
      loop.costs = {2 * cost, 2 * cost, 2 * cost};
      for (int i = 0; i < 40; ++i) loop.step();
      raced_again += loop.used[1] + loop.used[2] > others ? 1 : 0;
      left_later += loop.race.current() != 0 ? 1 : 0;
    }
    EXPECT_LE(left_at_first, kJobs * 12 / 100) << cost;
    EXPECT_LE(left_later, kJobs * 5 / 100) << cost;
    EXPECT_GE(raced_again, kJobs * 95 / 100) << cost;
  }
}

// A race that changes the choice for less than the noise is no reason to race soon again.
TEST(HookRace, AfterASwitchThatSavesLittleTheNextRaceWaits) {
  Loop loop({0.060, 0.041, 0.042}, 0, 1);
  loop.settle();
  for (int i = 0; i < 30; ++i) loop.step();
  ASSERT_EQ(loop.race.current(), 1U);
  loop.costs = {0.080, 0.081, 0.082};
  for (int i = 0; i < 20; ++i) loop.step();
  ASSERT_EQ(loop.race.current(), 0U);
  ASSERT_TRUE(loop.race.settled());
  const std::vector<int> used = loop.used;
  loop.costs = {0.160, 0.162, 0.164};
  for (int i = 0; i < 9 - loop.steps % 3; ++i) loop.step();
  EXPECT_EQ(loop.used[1] + loop.used[2], used[1] + used[2]);
}

// The longest wait is 768 steps.
TEST(HookRace, AfterManyFruitlessRacesARealChangeIsSeen) {
  Loop loop({0.010, 0.030, 0.050}, 0, 1);
  loop.settle();
  jump_all_the_time(loop);
  loop.costs = {0.200, 0.100, 0.050};
  int steps = 0;
  while (steps < 2000 && !(loop.race.settled() && loop.race.current() == 2)) {
    loop.step();
    ++steps;
  }
  EXPECT_LE(steps, 768 + 20);
}

TEST(HookRace, AfterForgetTimesTheHooksStillRaceAgain) {
  Loop loop({0.010, 0.030}, 0.02, 1);
  loop.settle();
  for (int i = 0; i < 40; ++i) loop.step();
  loop.race.forget_times();
  for (int i = 0; i < 40; ++i) loop.step();
  EXPECT_EQ(loop.race.current(), 0U);
  loop.costs = {0.100, 0.030};
  for (int i = 0; i < 20; ++i) loop.step();
  EXPECT_EQ(loop.race.current(), 1U);
}

TEST(HookRace, TimesThatAreNotFiniteAndTimesOfOtherHooksChangeNothing) {
  HookRace race(3);
  const std::vector<double> before = race.save();
  race.add(0, {std::numeric_limits<double>::infinity(), 1});
  race.add(0, {std::numeric_limits<double>::quiet_NaN(), 1});
  race.add(1, {0.1, 0.2});
  EXPECT_EQ(race.save(), before);
}

TEST(HookRace, ARestoredCopyDecidesAsTheOriginal) {
  Loop loop({0.010, 0.011, 0.050, 0.0105}, 0.05, 3);
  for (int i = 0; i < 400; ++i) {
    if (i == 150) loop.costs = {0.200, 0.100, 0.050, 0.150};
    HookRace copy(4);
    ASSERT_TRUE(copy.restore(loop.race.save())) << "step " << i;
    Loop other = loop;
    other.race = copy;
    for (int j = 0; j < 60; ++j) {
      loop.step();
      other.step();
      ASSERT_EQ(other.race.current(), loop.race.current()) << "step " << i << " + " << j;
      ASSERT_EQ(other.race.save(), loop.race.save()) << "step " << i << " + " << j;
    }
  }
}

// A job that continues from a checkpoint lacks the time of the step before the checkpoint.
TEST(HookRace, AJobThatIsResumedInTheMidstOfARaceMeasuresEachHook) {
  for (int saved_after = 0; saved_after < 80; ++saved_after) {
    Loop loop({0.010, 0.011, 0.012, 0.0105}, 0.01, 3);
    for (int i = 0; i < saved_after; ++i) {
      if (i == 50) loop.costs = {0.054, 0.050, 0.053, 0.051};
      loop.step();
    }
    loop.resume();
    for (int i = 0; i < 10; ++i) loop.step();
    loop.settle();
    for (std::size_t hook = 0; hook < 4; ++hook) {
      EXPECT_TRUE(std::isfinite(loop.race.measured(hook).cost)) << "hook " << hook << ", saved after " << saved_after;
    }
    EXPECT_TRUE(loop.is_near_best(0.03)) << "saved after " << saved_after;
  }
}

TEST(HookRace, RefusesNumbersThatAreNoState) {
  Loop loop({0.010, 0.011, 0.050}, 0, 1);
  for (int steps = 0; steps < 40; ++steps, loop.step()) {
    const std::vector<double> good = loop.race.save();
    EXPECT_FALSE(HookRace(4).restore(good)) << "another number of hooks";
    for (std::size_t length = 0; length < good.size(); ++length) {
      HookRace race(3);
      EXPECT_FALSE(race.restore({good.data(), length})) << "cut to " << length << " numbers";
    }
    std::vector<double> longer = good;
    longer.push_back(0);
    EXPECT_FALSE(HookRace(3).restore(longer));
    // Whatever one number is replaced by, a state that is taken can go on.
    for (std::size_t at = 0; at < good.size(); ++at) {
      for (const double value : {-1.0, 0.5, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
        std::vector<double> bad = good;
        bad[at] = value;
        HookRace race(3);
        if (!race.restore(bad)) continue;
        for (int i = 0; i < 60; ++i) {
          if (race.begin_step()) race.add(race.current(), {0.01, 0.02});
          ASSERT_LT(race.current(), 3U);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::hook_race_test
