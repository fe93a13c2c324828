// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: the model checker detects a weaker step protocol. Each access of the protocol gets a weaker memory order, and
// each wake-up is omitted, one at a time; some scenario must fail. The test prints a table with these scenarios.
#include <gtest/gtest.h>

#include <iomanip>
#include <iostream>
#include <set>
#include <sstream>

#include "tests/model/steps_machine.h"
#include "tests/model/steps_scenarios.h"

namespace gradwire::model {
namespace {

const std::string kHeaderPath = std::string(GRADWIRE_SOURCE_DIR) + "/" + kStepsHeader;
constexpr std::uint64_t kMostExecutions = 3'000'000;  // of one scenario

std::string describe(const Mutant& mutant) {
  std::ostringstream text;
  text << "line " << std::setw(3) << mutant.line << "  "
       << (mutant.access == Access::wake ? "left out" : "as " + name_of(mutant.order)) << ": "
       << line_of(kHeaderPath, mutant.line);
  return text.str();
}

// The name of the scenario that fails, or empty.
std::string caught_by(const Mutant& mutant) {
  for (const Scenario& scenario : fast_scenarios()) {
    Mutation mutation(kStepsHeader, mutant);
    const Report report = explore(scenario, mutation, kMostExecutions);
    if (!report.violation.empty()) return scenario.name + ": " + report.violation;
  }
  return {};
}

// All accesses that the scenarios run.
const std::map<int, Mutation::Seen>& accesses() {
  static const std::map<int, Mutation::Seen> found = [] {
    std::map<int, Mutation::Seen> seen;
    for (const Scenario& scenario : fast_scenarios()) {
      Mutation none(kStepsHeader);
      explore(scenario, none, 2000);
      seen.insert(none.seen().begin(), none.seen().end());
    }
    return seen;
  }();
  return found;
}

TEST(StepsMutants, NoAccessOfTheProtocolIsForgotten) {
  std::set<int> run;
  for (const auto& [line, seen] : accesses()) run.insert(line);
  for (const int line : lines_with_accesses(kHeaderPath)) {
    EXPECT_TRUE(run.contains(line)) << "no scenario runs line " << line << ": " << line_of(kHeaderPath, line);
  }
}

// A slice of the whole for every day: every wake-up, and every order weakened to none.
TEST(StepsMutants, WithoutAnOrderOrAWakeUpSomeScenarioFails) {
  int survivors = 0;
  for (const Mutant& mutant : mutants_of(accesses())) {
    if (mutant.order != std::memory_order_relaxed) continue;
    if (!caught_by(mutant).empty()) continue;
    ++survivors;
    std::cout << "SURVIVES  " << describe(mutant) << std::endl;
  }
  EXPECT_EQ(survivors, 0);
}

TEST(StepsMutantsSlow, EveryMutantIsCaught) {
  int all = 0;
  int caught = 0;
  for (const Mutant& mutant : mutants_of(accesses())) {
    const std::string how = caught_by(mutant);
    ++all;
    caught += how.empty() ? 0 : 1;
    std::cout << describe(mutant) << "\n    " << (how.empty() ? "SURVIVES" : how) << std::endl;
  }
  std::cout << caught << " of " << all << " mutants caught" << std::endl;
  EXPECT_GE(caught * 100, all * 95);
}

}  // namespace
}  // namespace gradwire::model
