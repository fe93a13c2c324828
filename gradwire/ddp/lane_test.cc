// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Lanes run jobs in order, and are done with one when nothing of it is left.
#include "gradwire/ddp/lane_internal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

namespace gradwire::internal::lane_test {
namespace {

TEST(Lane, RunsJobsInOrderAndTheLastOnesBeforeItEnds) {
  std::vector<int> ran;
  PendingCount pending;
  {
    Lane lane(0, {});
    for (int i = 0; i < 100; ++i) lane.submit([&ran, i] { ran.push_back(i); }, pending);
  }
  pending.wait();
  ASSERT_EQ(ran.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
}

// What a job holds may need something at its end that goes once the caller knows the job to be done: the lock of an
// interpreter, say. Letting go takes its time here, and would be seen if the caller did not wait for it.
TEST(Lane, LetsGoOfAJobBeforeItSaysThatTheJobIsDone) {
  std::promise<void> returned;
  std::atomic<bool> gone{false};
  PendingCount pending;
  Lane lane(0, {});
  std::shared_ptr<int> held(std::make_unique<int>(0).release(), [&, waits = returned.get_future().share()](int* value) {
    const std::unique_ptr<int> owned(value);
    waits.wait_for(std::chrono::milliseconds(200));
    gone = true;
  });
  lane.submit([held = std::move(held)] { EXPECT_NE(held, nullptr); }, pending);
  pending.wait();
  EXPECT_TRUE(gone.load());
  returned.set_value();
}

}  // namespace
}  // namespace gradwire::internal::lane_test
