// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/mutex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

namespace gradwire::mutex_test {
namespace {

struct Shared {
  Mutex mutex;
  ConditionVariable changed;
  bool waits GRADWIRE_GUARDED_BY(mutex) = false;
  bool done GRADWIRE_GUARDED_BY(mutex) = false;
};

TEST(ConditionVariableTest, WakesWhoWaits) {
  Shared shared;
  std::thread waiter([&] {
    MutexLock lock(shared.mutex);
    while (!shared.done) shared.changed.wait(lock);
  });
  {
    const MutexLock lock(shared.mutex);
    shared.done = true;
  }
  shared.changed.notify_all();
  waiter.join();
  MutexLock lock(shared.mutex);
  EXPECT_EQ(shared.changed.wait_for(lock, std::chrono::milliseconds(1)), std::cv_status::timeout);
  EXPECT_EQ(shared.changed.wait_until(lock, std::chrono::steady_clock::now()), std::cv_status::timeout);
}

TEST(ConditionVariableTest, AForkedChildMayDestroyWhatAThreadOfItsParentWaitsFor) {
  auto shared = std::make_unique<Shared>();
  std::thread waiter([&] {
    MutexLock lock(shared->mutex);
    shared->waits = true;
    while (!shared->done) shared->changed.wait(lock);
  });
  for (bool waits = false; !waits; std::this_thread::yield()) {
    const MutexLock lock(shared->mutex);  // held by the waiter until it waits
    waits = shared->waits;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // a child that hangs ends by a signal
    shared.reset();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  {
    const MutexLock lock(shared->mutex);
    shared->done = true;
  }
  shared->changed.notify_all();
  waiter.join();
}

}  // namespace
}  // namespace gradwire::mutex_test
