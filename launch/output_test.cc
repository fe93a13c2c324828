// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/output.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace gradwire::launch::output_test
