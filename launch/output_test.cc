// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/output.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launch/launch_error.h"
#include "tests/support/no_descriptors.h"

namespace gradwire::launch::output_test {
namespace {

// poll() fails for more entries than a process may have descriptors, whatever they hold.
TEST(Output, ProcessesThatHaveEndedAreNotPolled) {
  const Options options;
  Output output(options, {});
  std::vector<pollfd> polled;
  for (int process = 0; process < 50; ++process) {
    const RankOutput rank = output.open(0);
    polled.clear();
    output.append_interest(polled);
    EXPECT_LE(polled.size(), 6U) << "the launcher's two, this process's two, and those of the process before";
    ::poll(polled.data(), polled.size(), 0);
    output.handle(polled.data());
  }
  EXPECT_TRUE(output.last_error_lines(0).empty());
}

// No descriptor is left for it.
TEST(Output, ARankWithoutAPipeIsNamedByItsNumberInTheJob) {
  const Options options;
  Output output(options, {.first_rank = 4, .world = 8});
  std::string problem;
  try {
    const test_support::NoDescriptors none;
    output.open(0);
  } catch (const LaunchError& error) {
    problem = error.what();
  }
  EXPECT_EQ(problem, "cannot make a pipe for the output of rank 4: Too many open files");
}

}  // namespace
}  // namespace gradwire::launch::output_test
