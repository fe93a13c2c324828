// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: the step protocol keeps its promises in every order of the ranks' operations, under the memory model of C++,
// with a death at every point.
#include <gtest/gtest.h>

#include <iostream>
#include <vector>

#include "tests/model/steps_machine.h"
#include "tests/model/steps_scenarios.h"

namespace gradwire::model {
namespace {

void expect_all_hold(const std::vector<Scenario>& scenarios) {
  for (const Scenario& scenario : scenarios) {
    Mutation none(kStepsHeader);
    const Report report = explore(scenario, none, 50'000'000);
    std::cout << scenario.name << ": " << report.executions << " executions, " << report.states << " states, ";
    if (scenario.options.preemptions < 0) {
      std::cout << "every order" << std::endl;
    } else {
      std::cout << "every order with at most " << scenario.options.preemptions << " preemptions" << std::endl;
    }
    EXPECT_EQ(report.violation, "") << scenario.name << "\n" << report.trace;
    EXPECT_TRUE(report.complete) << scenario.name;
  }
}

TEST(StepsModel, EveryScenarioHoldsInEveryOrder) { expect_all_hold(fast_scenarios()); }

TEST(StepsModelSlow, EveryScenarioHoldsInEveryOrder) { expect_all_hold(slow_scenarios()); }

}  // namespace
}  // namespace gradwire::model
