// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For every model, bucket plan, hook and number of ranks, the gradients are those of one module that gets the batches
// of all ranks. A failure prints the seed and the random choices;
//   GRADWIRE_PROPERTY_SEED=<seed> build/bin/tests/ddp_property_test
// runs that seed again, and GRADWIRE_PROPERTY_CASES=<n> runs the seeds 1 to n. The test Full runs many seeds.
#include <cstdlib>

#include "tests/properties/random_training_test_support.h"

namespace gradwire::testing {
namespace {

constexpr std::uint64_t kCases = 60;
constexpr std::uint64_t kFullCases = 3000;
// Seeds that found something, after which all is well.
constexpr std::uint64_t kOnceWrong[] = {
    1137,  // static graph, one rank without a hook, which gets one later: unused parameters got gradients of zeros
};

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void check(std::uint64_t seed) {
  const TrainingPlan plan(seed);
  std::vector<std::string> errors(static_cast<std::size_t>(plan.world));
  std::string thrown;
  try {
    const auto expected = oracle_gradients(plan);
    run_ranks(plan.setup, plan.world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      errors[static_cast<std::size_t>(rank)] = training_error(plan, rank, group, expected);
      if (!errors[static_cast<std::size_t>(rank)].empty()) throw std::runtime_error("gave up");
    });
  } catch (const std::exception& error) {
    thrown = error.what();
  }
  if (thrown.empty()) return;
  std::string wrong = concat("thrown: ", thrown);
  for (const std::string& error : errors) {
    if (!error.empty()) wrong = error;
  }
  ADD_FAILURE() << wrong << "\n"
                << plan.describe() << "\n  replay: GRADWIRE_PROPERTY_SEED=" << seed
                << " build/bin/tests/ddp_property_test";
}

void check_all(std::uint64_t cases) {
  const std::uint64_t replayed = number_in("GRADWIRE_PROPERTY_SEED", 0);
  if (replayed != 0) {
    check(replayed);
    return;
  }
  cases = number_in("GRADWIRE_PROPERTY_CASES", cases);
  for (std::uint64_t seed = 1; seed <= cases && !::testing::Test::HasFailure(); ++seed) check(seed);
}

TEST(DdpProperty, GradientsAreThoseOfTheWholeBatch) {
  for (const std::uint64_t seed : kOnceWrong) check(seed);
  check_all(kCases);
}
TEST(DdpProperty, GradientsAreThoseOfTheWholeBatchFull) { check_all(kFullCases); }

// The comparison can fail: an oracle that is off in one parameter of the last step is noticed in every case.
TEST(DdpProperty, SeesWhatIsWrong) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const TrainingPlan plan(seed);
    auto expected = oracle_gradients(plan);
    expected.back()[0] = expected.back()[0] + 10 * plan.tolerance;
    run_ranks(plan.setup, plan.world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const std::string error = training_error(plan, rank, group, expected);
      EXPECT_NE(error.find("off by"), std::string::npos) << plan.describe();
    });
  }
}

}  // namespace
}  // namespace gradwire::testing
