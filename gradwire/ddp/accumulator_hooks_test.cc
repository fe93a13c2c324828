// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks on old accumulators stay while a graph holds these, and no longer.
#include "gradwire/ddp/accumulator_hooks_internal.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <vector>

namespace gradwire::internal::accumulator_hooks_test {
namespace {

// The parameter gets another accumulator.
void replace_accumulator(at::Tensor& parameter) {
  const at::ScalarType other = parameter.scalar_type() == at::kFloat ? at::kDouble : at::kFloat;
  parameter.set_data(parameter.detach().to(other));
}

TEST(AccumulatorHooks, ALatePassThroughAnOldAccumulatorIsNoticed) {
  at::Tensor parameter = at::ones({2}).requires_grad_();
  std::vector<std::size_t> noticed;
  AccumulatorHooks hooks;
  const auto on_gradient = [&](std::size_t number) { noticed.push_back(number); };
  hooks.attach({parameter}, on_gradient);
  at::Tensor loss = (parameter * 2).sum();
  replace_accumulator(parameter);
  replace_accumulator(parameter);
  hooks.attach({parameter}, on_gradient);
  EXPECT_EQ(hooks.late_count(), 1U);
  loss.backward();
  EXPECT_EQ(noticed, std::vector<std::size_t>{0});
  loss.reset();
  hooks.attach({parameter}, on_gradient);
  EXPECT_EQ(hooks.late_count(), 0U);
}

// As a Reducer and a DelayedReduction that watch one parameter, whose accumulator changes in each step.
TEST(AccumulatorHooks, TwoOwnersDoNotKeepEachOthersOldHooks) {
  at::Tensor parameter = at::ones({2}).requires_grad_();
  AccumulatorHooks one;
  AccumulatorHooks other;
  for (int step = 0; step < 100; ++step) {
    replace_accumulator(parameter);
    for (AccumulatorHooks* hooks : {&one, &other}) {
      hooks->attach({parameter}, [](std::size_t) {});
      ASSERT_LE(hooks->late_count(), 1U) << "step " << step;
    }
  }
}

TEST(AccumulatorHooks, ATensorWithoutAGradientHasNone) {
  const at::Tensor frozen = at::ones({2});
  AccumulatorHooks hooks;
  for (int step = 0; step < 3; ++step) hooks.attach({frozen}, [](std::size_t) {});
  EXPECT_EQ(hooks.late_count(), 0U);
  EXPECT_TRUE(hooks.is_of(0, frozen));
}

}  // namespace
}  // namespace gradwire::internal::accumulator_hooks_test
