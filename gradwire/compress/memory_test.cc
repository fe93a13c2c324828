// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The arithmetic of each memory and its state, without any exchange: what is delivered is made up.
#include "gradwire/compress/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::compress::memory_test {
namespace {

using Floats = std::vector<float>;

struct Step {
  Floats sent;
  Floats gradient;
};

// One step: `delivered` and `mean` are what an exchange would have given.
Step run_step(Memory& memory, std::span<const Segment> segments, Floats gradient, const Floats& delivered, Floats mean,
              int world = 1) {
  Floats sent(gradient.size(), -1);
  memory.before(segments, world, gradient, sent);
  memory.before(segments, world, gradient, gradient);
  EXPECT_EQ(sent, gradient) << "in place and not";
  Step step{std::move(sent), std::move(mean)};
  memory.after(segments, step.sent, delivered, step.gradient);
  return step;
}

const std::vector<Segment> kOne{{"w", 0, 2}};

TEST(NoMemory, LeavesEverythingAsItIs) {
  const auto memory = make_no_memory();
  const Step step = run_step(*memory, kOne, {1, 2}, {0, 0}, {3, 4});
  EXPECT_EQ(step.sent, (Floats{1, 2}));
  EXPECT_EQ(step.gradient, (Floats{3, 4}));
  EXPECT_TRUE(memory->save().empty());
  EXPECT_FALSE(memory->remembers());
  EXPECT_NO_THROW(memory->load({}));
  EXPECT_THROW(memory->load({{"local/residual/w", {1}}}), InvalidArgument);
}

TEST(ErrorFeedback, SendsAgainWhatWasNotDelivered) {
  const auto memory = make_error_feedback_memory();
  EXPECT_EQ(run_step(*memory, kOne, {1, 2}, {1, 0.5f}, {7, 8}).gradient, (Floats{7, 8}));
  EXPECT_EQ(memory->save(), (MemoryState{{"local/residual/w", {0, 1.5f}}}));
  EXPECT_EQ(run_step(*memory, kOne, {1, 2}, {0, 0}, {0, 0}).sent, (Floats{1, 3.5f}));
  EXPECT_EQ(memory->save(), (MemoryState{{"local/residual/w", {1, 3.5f}}}));
}

TEST(ErrorFeedback, DoesNotKeepADifferenceThatOverflows) {
  const auto memory = make_error_feedback_memory();
  const float largest = std::numeric_limits<float>::max();
  run_step(*memory, kOne, {largest, 1}, {-largest, 0}, {0, 0});
  EXPECT_EQ(memory->save().at("local/residual/w"), (Floats{0, 1}));
}

TEST(Ef21, SendsTheDifferenceAndGivesTheSumOfMeans) {
  const auto memory = make_ef21_memory();
  EXPECT_EQ(run_step(*memory, kOne, {1, 2}, {1, 0}, {3, 1}).gradient, (Floats{3, 1}));
  const Step second = run_step(*memory, kOne, {1, 2}, {0, 1}, {1, 1});
  EXPECT_EQ(second.sent, (Floats{0, 2}));
  EXPECT_EQ(second.gradient, (Floats{4, 2}));
  EXPECT_EQ(memory->save(), (MemoryState{{"aggregate/w", {4, 2}}, {"local/estimate/w", {1, 1}}}));
}

TEST(Ef21, ARankWithoutAnEstimateStartsFromTheAggregate) {
  const auto memory = make_ef21_memory();
  memory->load({{"aggregate/w", {5, 6}}});
  const Step step = run_step(*memory, kOne, {5, 7}, {0, 1}, {0, 1});
  EXPECT_EQ(step.sent, (Floats{0, 1}));
  EXPECT_EQ(step.gradient, (Floats{5, 7}));
  EXPECT_EQ(memory->save(), (MemoryState{{"aggregate/w", {5, 7}}, {"local/estimate/w", {5, 7}}}));
}

// The first part makes the estimate. It must hold the aggregate of the other parts too.
TEST(Ef21, ARankWithoutAnEstimateStartsFromTheAggregateInParts) {
  const auto memory = make_ef21_memory();
  memory->load({{"aggregate/w", {1, 2, 3, 4}}});
  const std::vector<Segment> first{{"w", 0, 2, 0, 4}};
  const std::vector<Segment> second{{"w", 0, 2, 2, 4}};
  EXPECT_EQ(run_step(*memory, first, {10, 10}, {0, 0}, {5, 5}).sent, (Floats{9, 8}));
  EXPECT_EQ(run_step(*memory, second, {10, 10}, {0, 0}, {5, 5}).sent, (Floats{7, 6}));
  EXPECT_EQ(memory->save(), (MemoryState{{"aggregate/w", {6, 7, 8, 9}}, {"local/estimate/w", {1, 2, 3, 4}}}));
}

// What before() gives for a part does not depend on what comes with it, so a caller may ask in parts, and again.
TEST(WorksByValue, PartsOfValuesMakeUpTheWhole) {
  for (const auto& make :
       {std::function(&make_no_memory), std::function(&make_error_feedback_memory), std::function(&make_ef21_memory),
        std::function([] { return make_momentum_memory({.momentum = 0.5f, .clip = 0}); })}) {
    const auto whole = make();
    const auto parts = make();
    ASSERT_TRUE(whole->works_by_value());
    for (int step = 0; step < 3; ++step) {
      const Floats gradient{1, 2, 3, 4.5f, 5};
      const Floats delivered{1, 0, 2, 0, 4};
      Floats sent(5);
      whole->before(std::vector<Segment>{{"v", 0, 1}, {"w", 1, 4}}, 1, gradient, sent);
      Floats mean{7, 8, 9, 10, 11};
      whole->after(std::vector<Segment>{{"v", 0, 1}, {"w", 1, 4}}, sent, delivered, mean);
      const std::vector<Segment> front{{"v", 0, 1}, {"w", 1, 1, 0, 4}};
      const std::vector<Segment> back{{"w", 0, 3, 1, 4}};
      const auto run_part = [&](const std::vector<Segment>& segments, std::size_t first, std::size_t count) {
        const auto from = static_cast<std::ptrdiff_t>(first);
        const auto cut = [&](const Floats& values) {
          return Floats(values.begin() + from, values.begin() + from + static_cast<std::ptrdiff_t>(count));
        };
        const Step done = run_step(*parts, segments, cut(gradient), cut(delivered), cut({7, 8, 9, 10, 11}));
        EXPECT_EQ(done.sent, cut(sent)) << whole->name();
        EXPECT_EQ(done.gradient, cut(mean)) << whole->name();
      };
      run_part(back, 2, 3);
      run_part(front, 0, 2);
    }
    EXPECT_EQ(parts->save(), whole->save());
  }
}

TEST(AnEmptyPart, StillShowsAnotherSize) {
  for (const auto& make : {std::function(&make_error_feedback_memory), std::function(&make_ef21_memory),
                           std::function([] { return make_momentum_memory({}); })}) {
    const auto memory = make();
    run_step(*memory, kOne, {1, 2}, {0, 0}, {3, 4});
    EXPECT_NO_THROW(memory->before(std::vector<Segment>{{"w", 0, 0, 0, 2}}, 1, {}, {}));
    EXPECT_THROW(memory->before(std::vector<Segment>{{"w", 0, 0, 0, 3}}, 1, {}, {}), InvalidArgument);
  }
}

TEST(Momentum, AccumulatesVelocitiesAndClearsWhatWasDelivered) {
  const auto memory = make_momentum_memory({.momentum = 0.5f, .clip = 0});
  EXPECT_EQ(run_step(*memory, kOne, {4, 8}, {4, 0}, {1, 0}).sent, (Floats{4, 8}));
  EXPECT_EQ(memory->save(), (MemoryState{{"local/momentum/w", {0, 8}}, {"local/velocity/w", {0, 8}}}));
  // u = 0.5 * 8 + 2 = 6, v = 8 + 6
  EXPECT_EQ(run_step(*memory, kOne, {4, 2}, {0, 10}, {0, 0}).sent, (Floats{4, 14}));
  EXPECT_EQ(memory->save(), (MemoryState{{"local/momentum/w", {4, 0}}, {"local/velocity/w", {4, 4}}}));
}

TEST(Momentum, ClipsEachParametersGradientByTheSizeOfTheWorld) {
  const auto memory = make_momentum_memory({.momentum = 0, .clip = 10});
  const std::vector<Segment> segments{{"a", 0, 2}, {"b", 2, 1}};
  // Four ranks: to a norm of 10 / 2.
  const Step step = run_step(*memory, segments, {30, 40, 4}, {0, 0, 0}, {0, 0, 0}, 4);
  EXPECT_EQ(step.sent, (Floats{3, 4, 4}));
}

TEST(Momentum, RefusesOptionsOutOfRange) {
  for (const MomentumOptions wrong : {MomentumOptions{1, 0}, MomentumOptions{-0.1f, 0}, MomentumOptions{0.9f, -1},
                                      MomentumOptions{std::nanf(""), 0}, MomentumOptions{0.9f, INFINITY}}) {
    EXPECT_THROW(make_momentum_memory(wrong), InvalidArgument);
  }
}

class EveryMemory : public testing::TestWithParam<int> {
 protected:
  static std::unique_ptr<Memory> make() {
    if (GetParam() == 0) return make_error_feedback_memory();
    return GetParam() == 1 ? make_ef21_memory() : make_momentum_memory();
  }
};
INSTANTIATE_TEST_SUITE_P(Memories, EveryMemory, testing::Values(0, 1, 2));

TEST_P(EveryMemory, KeepsStateByNameWhateverTheBuckets) {
  const auto together = make();
  const auto apart = make();
  const std::vector<Segment> all{{"a", 0, 2}, {"b", 2, 1}, {"c", 3, 2}};
  const Floats delivered{1, 0, 0, 2, 0};
  const Floats mean{1, 0, 0, 2, 1};
  for (int i = 0; i < 3; ++i) {
    const Step one = run_step(*together, all, {1, 2, 3, 4, 5}, delivered, mean);
    // Other buckets, in another order, with a gap that belongs to nobody.
    const Step bc =
        run_step(*apart, std::vector<Segment>{{"c", 0, 2}, {"b", 3, 1}}, {4, 5, 99, 3}, {2, 0, 99, 0}, {2, 1, 99, 0});
    const Step a = run_step(*apart, std::vector<Segment>{{"a", 0, 2}}, {1, 2}, {1, 0}, {1, 0});
    EXPECT_EQ(one.sent, (Floats{a.sent[0], a.sent[1], bc.sent[3], bc.sent[0], bc.sent[1]}));
    EXPECT_EQ(one.gradient, (Floats{a.gradient[0], a.gradient[1], bc.gradient[3], bc.gradient[0], bc.gradient[1]}));
    EXPECT_EQ(bc.sent[2], 99);
    EXPECT_EQ(bc.gradient[2], 99);
    EXPECT_EQ(together->save(), apart->save());
  }
}

TEST_P(EveryMemory, GoesOnAfterLoadingAsIfNothingHadBeen) {
  const auto first = make();
  for (int i = 0; i < 3; ++i) run_step(*first, kOne, {1, 2}, {0, 1}, {1, 1});
  const auto second = make();
  run_step(*second, std::vector<Segment>{{"gone", 0, 1}}, {1}, {0}, {0});
  second->load(first->save());
  EXPECT_EQ(second->save(), first->save());
  for (int i = 0; i < 3; ++i) {
    const Step a = run_step(*first, kOne, {3, 2}, {0, 1}, {1, 1});
    const Step b = run_step(*second, kOne, {3, 2}, {0, 1}, {1, 1});
    EXPECT_EQ(a.sent, b.sent);
    EXPECT_EQ(a.gradient, b.gradient);
  }
  second->clear();
  EXPECT_TRUE(second->save().empty());
}

TEST_P(EveryMemory, AStepWithoutAfterIsAsIfItHadNotBeen) {
  const auto memory = make();
  run_step(*memory, kOne, {1, 2}, {0, 1}, {1, 1});
  const auto expected = make();
  expected->load(memory->save());
  Floats poisoned{std::numeric_limits<float>::infinity(), std::nanf("")};
  memory->before(kOne, 1, poisoned, poisoned);
  EXPECT_EQ(memory->save(), expected->save());
  const Step a = run_step(*memory, kOne, {3, 2}, {0, 1}, {1, 1});
  const Step b = run_step(*expected, kOne, {3, 2}, {0, 1}, {1, 1});
  EXPECT_EQ(a.sent, b.sent);
  EXPECT_EQ(memory->save(), expected->save());
}

TEST_P(EveryMemory, BeforeMakesNoState) {
  const auto memory = make();
  Floats gradient{1, 2};
  memory->before(kOne, 1, gradient, gradient);
  EXPECT_TRUE(memory->save().empty());
}

// Parts of a parameter at random, which overlap and come again; now and then a parameter that is new, one that is held
// or restored, or another state.
TEST_P(EveryMemory, RevertBringsBackTheStateThatWasKept) {
  std::mt19937 random(1);
  const auto number = [&] { return static_cast<float>(random() % 100) - 50; };
  const auto memory = make();
  const auto disturb = [&] {
    const std::string name = random() % 8 == 0 ? concat("new ", random() % 3) : "w";
    const std::size_t first = random() % 20;
    const std::size_t count = 1 + random() % (20 - first);
    const std::vector<Segment> part{{name, 0, count, first, 20}};
    if (random() % 4 == 0) memory->restore(name);
    if (random() % 4 == 0) memory->hold(name);
    Floats gradient(count), delivered(count), mean(count);
    for (Floats* values : {&gradient, &delivered, &mean}) std::generate(values->begin(), values->end(), number);
    run_step(*memory, part, gradient, delivered, mean);
  };
  memory->revert();  // nothing was kept
  for (int round = 0; round < 300; ++round) {
    memory->keep();
    const MemoryState kept = memory->save();
    for (int again = 0; again < 2; ++again) {
      for (auto steps = random() % 12; steps > 0; --steps) disturb();
      if (random() % 5 == 0) memory->clear();
      for (auto steps = random() % 3; steps > 0; --steps) disturb();
      memory->revert();
      ASSERT_EQ(memory->save(), kept) << "round " << round;
    }
    disturb();
    if (random() % 20 == 0) memory->load(kept);
  }
}

// Reordered values go on as values of the new order; a kept state comes back in the old one.
TEST_P(EveryMemory, ReorderMovesAllThatThereIsOfAParameter) {
  const std::vector<std::size_t> from{2, 0, 1, 3};
  const auto moved = [&](const Floats& values) {
    Floats out;
    for (const std::size_t place : from) out.push_back(values[place]);
    return out;
  };
  const std::vector<Segment> w{{"w", 0, 4}}, v{{"v", 0, 1}};
  const Floats gradient{1, 2, 3, 4}, delivered{0, 2, 0, 1}, mean{1, 1, 0, 2};
  const auto memory = make(), other = make();
  memory->reorder("w", from);  // nothing is there yet
  EXPECT_TRUE(memory->save().empty());
  run_step(*memory, w, gradient, delivered, mean);
  run_step(*other, w, moved(gradient), moved(delivered), moved(mean));
  run_step(*memory, v, {5}, {2}, {1});
  run_step(*other, v, {5}, {2}, {1});
  memory->keep();
  const MemoryState kept = memory->save();
  for (int again = 0; again < 2; ++again) {
    memory->reorder("w", from);
    EXPECT_EQ(memory->save(), other->save());
    run_step(*memory, w, gradient, delivered, mean);
    memory->revert();
    EXPECT_EQ(memory->save(), kept);
  }
  memory->reorder("w", from);
  run_step(*memory, w, gradient, mean, delivered);
  run_step(*other, w, gradient, mean, delivered);
  EXPECT_EQ(memory->save(), other->save());
  EXPECT_THROW(memory->reorder("w", std::vector<std::size_t>{1, 0}), InvalidArgument);
}

// An iteration that holds parameters and may restore them, beside keep() and revert(), which go further back.
TEST_P(EveryMemory, RestoreBringsBackAHeldParameterAlone) {
  std::mt19937 random(2);
  const auto number = [&] { return static_cast<float>(random() % 100) - 50; };
  const auto memory = make();
  const auto step = [&](const std::string& name) {
    Floats gradient(6), delivered(6), mean(6);
    for (Floats* values : {&gradient, &delivered, &mean}) std::generate(values->begin(), values->end(), number);
    run_step(*memory, std::vector<Segment>{{name, 0, 6}}, gradient, delivered, mean);
  };
  const auto of = [&](std::string_view name) {
    MemoryState state = memory->save();
    std::erase_if(state, [&](const auto& item) { return !item.first.ends_with(name); });
    return state;
  };
  memory->restore("w");  // nothing is held
  for (int round = 0; round < 200; ++round) {
    if (random() % 10 == 0) memory->clear();
    memory->keep();
    const MemoryState kept = memory->save();
    for (auto iterations = random() % 4; iterations > 0; --iterations) {
      const MemoryState before = of("/w");
      memory->hold("w");
      step("w");
      step("v");
      const MemoryState after = of("/w"), other = of("/v");
      const bool restores = random() % 2 == 0;
      if (restores) memory->restore("w");
      memory->release();
      memory->restore("w");  // nothing is held any more
      ASSERT_EQ(of("/w"), restores ? before : after) << "round " << round;
      ASSERT_EQ(of("/v"), other) << "round " << round;
    }
    if (random() % 2 == 0) {
      memory->revert();
      ASSERT_EQ(memory->save(), kept) << "round " << round;
    }
  }
  memory->hold("w");
  memory->load({});
  memory->restore("w");
  EXPECT_TRUE(memory->save().empty());
}

// What was held before keep() may be older than the kept state.
TEST_P(EveryMemory, RevertTakesBackARestore) {
  for (const bool is_there : {false, true}) {
    const auto memory = make();
    if (is_there) run_step(*memory, kOne, {1, 2}, {0, 1}, {1, 1});
    const MemoryState held = memory->save();
    memory->hold("w");
    run_step(*memory, kOne, {3, 5}, {1, 0}, {1, 1});
    memory->keep();
    const MemoryState kept = memory->save();
    memory->restore("w");
    EXPECT_EQ(memory->save(), held);
    run_step(*memory, kOne, {7, 8}, {0, 0}, {2, 2});
    memory->revert();
    EXPECT_EQ(memory->save(), kept);
  }
}

TEST_P(EveryMemory, RefusesAnotherLengthAndForeignKeys) {
  const auto memory = make();
  run_step(*memory, kOne, {1, 2}, {0, 1}, {1, 1});
  Floats three(3);
  try {
    memory->before(std::vector<Segment>{{"w", 0, 3}}, 1, three, three);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("'w' has 3 values"), std::string::npos) << error.what();
  }
  const MemoryState before = memory->save();
  EXPECT_THROW(memory->load({{"local/other/w", {1}}}), InvalidArgument);
  EXPECT_EQ(memory->save(), before);
}

TEST(AverageLocal, KeepsWhatAllRanksTogetherOwe) {
  const std::vector<MemoryState> ranks{{{"local/residual/w", {1, 2}}, {"aggregate/w", {5, 6}}},
                                       {{"local/residual/w", {3, 4}}, {"aggregate/w", {5, 6}}},
                                       {{"local/residual/v", {3}}},
                                       {}};
  EXPECT_EQ(average_local(ranks),
            (MemoryState{{"local/residual/w", {1, 1.5f}}, {"local/residual/v", {0.75f}}, {"aggregate/w", {5, 6}}}));
  EXPECT_THROW(average_local({}), InvalidArgument);
  const std::vector<MemoryState> unequal{{{"local/residual/w", {1, 2}}}, {{"local/residual/w", {1}}}};
  EXPECT_THROW(average_local(unequal), InvalidArgument);
}

// Rank 1 has joined: it takes the aggregate for its estimate. Of gradients of zeros, both ranks owe -2 on average.
TEST(AverageLocal, LeavesOutAnEstimateThatARankLacks) {
  const std::vector<MemoryState> ranks{{{"aggregate/w", {2}}, {"local/estimate/w", {2}}}, {{"aggregate/w", {2}}}};
  const MemoryState moved = average_local(ranks);
  EXPECT_EQ(moved, (MemoryState{{"aggregate/w", {2}}}));
  const std::vector<Segment> one{{"w", 0, 1}};
  const auto memory = make_ef21_memory();
  memory->load(moved);
  // Both ranks do the same, and all of it is delivered.
  const Step step = run_step(*memory, one, {0}, {-2}, {-2});
  EXPECT_EQ(step.sent, (Floats{-2}));
  EXPECT_EQ(step.gradient, (Floats{0}));
  const std::vector<MemoryState> all_have{{{"aggregate/w", {2}}, {"local/estimate/w", {1}}},
                                          {{"aggregate/w", {2}}, {"local/estimate/w", {3}}}};
  EXPECT_EQ(average_local(all_have), (MemoryState{{"aggregate/w", {2}}, {"local/estimate/w", {2}}}));
}

}  // namespace
}  // namespace gradwire::compress::memory_test
