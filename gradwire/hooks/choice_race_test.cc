// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision about hook and shape, given times that a model makes up: the hooks settle first and then the shapes,
// near the best of all pairs; without freedom the shapes never race; a change makes both race again; a copy decides
// alike.
#include "gradwire/hooks/choice_race_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace gradwire::choice_race_test {
namespace {

using internal::ChoiceRace;
using internal::LoopTime;
using Choice = ChoiceRace::Choice;

constexpr double kForward = 0.020;  // seconds from the beginning of the forward pass to the first bucket of shape 0
constexpr double kOther = 0.010;    // seconds of a step outside of the pass

// Steps of a loop in which hook h with shape s takes costs[h] * factors[s]. A time reaches the race one step late, and
// windows reach it as medians, as the hook does it.
class Loop {
 public:
  Loop(std::vector<double> costs, std::vector<double> factors, double noise, unsigned seed)
      : costs(std::move(costs)), factors(std::move(factors)), race(this->costs.size()), noise_(noise), random_(seed) {
    race.set_shapes(this->factors.size());
    race.allow_shapes(true);
  }

  void step() {
    const Choice choice = race.current(), last = race.last();
    ++steps;
    others += choice.shape != 0 ? 1 : 0;
    if (before_ == last && (last == choice || !race.settled())) window_.push_back(time_before_);
    if (race.begin_step()) {
      race.add(last, median_of(window_));
      window_.clear();
    } else if (!race.settled()) {
      window_.clear();
    }
    // Noise makes steps longer, never shorter than the work.
    const double cost = costs[choice.hook] * factors[choice.shape] * (1 + noise_ * std::abs(normal_(random_)));
    // A larger first bucket begins later, and so seems to cost less.
    const double later = 0.005 * static_cast<double>(choice.shape);
    time_before_ = {std::max(cost - later, 0.001), kForward + cost + kOther, kForward + cost};
    before_ = choice;
  }
  // A job that goes on from a checkpoint: the times since the last exchange are lost.
  void resume() {
    ChoiceRace copy(costs.size());
    copy.set_shapes(factors.size());
    copy.allow_shapes(true);
    ASSERT_TRUE(copy.restore_hooks(race.save_hooks()) && copy.restore_shapes(race.save_shapes()));
    race = copy;
    before_.reset();
    window_.clear();
  }
  void settle() {
    for (int i = 0; i < 1000 && !race.settled(); ++i) step();
  }
  double cost_of(const Choice& choice) const { return costs[choice.hook] * factors[choice.shape]; }
  bool is_near_best(double share) const {
    const double best =
        *std::min_element(costs.begin(), costs.end()) * *std::min_element(factors.begin(), factors.end());
    return cost_of(race.current()) - best <= share * (kForward + kOther + best);
  }

  std::vector<double> costs;    // by hook
  std::vector<double> factors;  // by shape
  ChoiceRace race;
  int steps = 0;
  int others = 0;  // steps of other shapes than the first

 private:
  const double noise_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::optional<Choice> before_;
  LoopTime time_before_;
  std::vector<LoopTime> window_;
};

TEST(ChoiceRace, FindsAHookAndAShapeNearTheBest) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.005, 0.1), factor(0.6, 1.4);
  int far = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const std::size_t hooks = 1 + seed % 3;
    std::vector<double> costs, factors{1.0};
    while (costs.size() < hooks) costs.push_back(cost(random));
    while (factors.size() < 4) factors.push_back(factor(random));
    Loop loop(costs, factors, 0.02, seed);
    loop.settle();
    ASSERT_TRUE(loop.race.settled()) << "seed " << seed;
    EXPECT_LE(loop.steps, hooks == 1 ? 32 : 48) << "seed " << seed;
    far += loop.is_near_best(0.03) ? 0 : 1;
  }
  EXPECT_LE(far, 3) << "of 300";
}

TEST(ChoiceRace, AllAlikeKeepsTheFirstHookAndTheFirstShape) {
  for (const std::size_t hooks : {1U, 2U, 3U, 6U}) {
    Loop loop(std::vector<double>(hooks, 0.02), {1, 1, 1, 1}, 0, 1);
    loop.settle();
    EXPECT_EQ(loop.race.current(), (Choice{0, 0}));
    EXPECT_LE(loop.steps, hooks == 1 ? 32 : hooks == 6 ? 60 : 48);
  }
}

TEST(ChoiceRace, NoiseAloneSeldomChoosesAShape) {
  int chosen = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    Loop loop({0.02, 0.04}, {1, 1.1, 1.1, 1.1}, 0.05, seed);
    loop.settle();
    chosen += loop.race.current().shape != 0 ? 1 : 0;
  }
  EXPECT_LE(chosen, 5);
}

TEST(ChoiceRace, ShapesThatAreNotAllowedNeverRace) {
  Loop loop({0.02, 0.04}, {1, 0.5, 0.5, 0.5}, 0, 1);
  loop.race.allow_shapes(false);
  loop.settle();
  for (int i = 0; i < 100; ++i) loop.step();
  EXPECT_EQ(loop.others, 0);
  loop.race.allow_shapes(true);
  loop.settle();
  EXPECT_EQ(loop.race.current(), (Choice{0, 1}));
  loop.race.allow_shapes(false);
  EXPECT_EQ(loop.race.current(), (Choice{0, 0}));
  loop.race.allow_shapes(true);
  loop.step();
  for (int i = 0; i < 30; ++i) loop.step();
  loop.costs = {0.2, 0.04};
  for (int i = 0; i < 40; ++i) loop.step();
  EXPECT_EQ(loop.race.current(), (Choice{1, 1})) << "after a race of shapes alone, the hooks follow a change";
}

TEST(ChoiceRace, FollowsAChangeOfHookAndShape) {
  const std::vector<double> few{1, 1.5, 1.5, 1.5}, many{1, 1, 0.5, 1};
  for (const std::size_t hooks : {1U, 3U}) {
    std::vector<double> fast(hooks, 0.040), slow(hooks, 0.200);
    fast.front() = 0.020;
    slow.back() = 0.090;
    Loop loop(fast, few, 0.02, 1);
    loop.settle();
    for (int change = 0; change < 4; ++change) {
      for (int i = 0; i < 40; ++i) loop.step();
      const bool to_slow = change % 2 == 0;
      loop.costs = to_slow ? slow : fast;
      loop.factors = to_slow ? many : few;
      const Choice best = to_slow ? Choice{hooks - 1, 2} : Choice{0, 0};
      for (int i = 0; i < 20; ++i) loop.step();
      EXPECT_EQ(loop.race.current().hook, best.hook) << hooks << " hooks, change " << change;
      for (int i = 0; i < 16; ++i) loop.step();
      EXPECT_TRUE(loop.race.settled()) << hooks << " hooks, change " << change;
      EXPECT_EQ(loop.race.current(), best) << hooks << " hooks, change " << change;
    }
  }
}

TEST(ChoiceRace, TimesOfAnotherChoiceAndUnknownPassesChangeNothing) {
  Loop loop({0.02, 0.04}, {1, 0.5}, 0, 1);
  const auto before = loop.race.save_hooks();
  loop.race.add({1, 0}, {0.1, 0.2, 0.15});
  EXPECT_EQ(loop.race.save_hooks(), before);
  while (!loop.race.hooks_settled()) loop.step();
  const auto shapes = loop.race.save_shapes();
  loop.race.add(loop.race.current(), {0.1, 0.2, std::numeric_limits<double>::infinity()});
  EXPECT_EQ(loop.race.save_shapes(), shapes);
}

TEST(ChoiceRace, ARestoredCopyDecidesAsTheOriginal) {
  Loop loop({0.010, 0.011, 0.0105}, {1, 0.9, 1.1, 0.95}, 0.05, 3);
  for (int i = 0; i < 200; ++i) {
    if (i == 100) loop.costs = {0.200, 0.100, 0.050};
    ChoiceRace copy(3);
    copy.set_shapes(4);
    copy.allow_shapes(true);
    ASSERT_TRUE(copy.restore_hooks(loop.race.save_hooks()) && copy.restore_shapes(loop.race.save_shapes()));
    Loop other = loop;
    other.race = copy;
    for (int j = 0; j < 60; ++j) {
      loop.step();
      other.step();
      ASSERT_EQ(other.race.current(), loop.race.current()) << "step " << i << " + " << j;
      ASSERT_EQ(other.race.save_hooks(), loop.race.save_hooks()) << "step " << i << " + " << j;
      ASSERT_EQ(other.race.save_shapes(), loop.race.save_shapes()) << "step " << i << " + " << j;
    }
  }
}

// A job that continues from a checkpoint lacks the time of the step before the checkpoint, which may be the only one of
// a shape.
TEST(ChoiceRace, AJobThatIsResumedInTheMidstOfARaceMeasuresEachHookAndShape) {
  for (int saved_after = 0; saved_after < 110; ++saved_after) {
    Loop loop({0.010, 0.011, 0.0105}, {1, 1.1, 0.9, 1.2}, 0.01, 3);
    for (int i = 0; i < saved_after; ++i) {
      if (i == 70) {
        loop.costs = {0.090, 0.100, 0.050};
        loop.factors = {1, 0.7, 1.1, 1.2};
      }
      loop.step();
    }
    loop.resume();
    for (int i = 0; i < 50; ++i) loop.step();
    ASSERT_TRUE(loop.race.settled()) << "saved after " << saved_after;
    for (std::size_t hook = 0; hook < 3; ++hook) {
      EXPECT_TRUE(std::isfinite(loop.race.measured_hook(hook).cost))
          << "hook " << hook << ", saved after " << saved_after;
    }
    for (std::size_t shape = 0; shape < 4; ++shape) {
      EXPECT_TRUE(std::isfinite(loop.race.measured_shape(shape).cost))
          << "shape " << shape << ", saved after " << saved_after;
    }
    EXPECT_TRUE(loop.is_near_best(0.03)) << "saved after " << saved_after;
  }
}

}  // namespace
}  // namespace gradwire::choice_race_test
