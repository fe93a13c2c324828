// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/parked_threads_internal.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"

namespace gradwire::internal {
namespace {

struct Parked {
  Mutex mutex;
  std::vector<Thread> threads GRADWIRE_GUARDED_BY(mutex);
};

Parked& parked() {
  static Parked instance;
  return instance;
}

}  // namespace

void park_thread(Thread thread) {
  MutexLock lock(parked().mutex);
  parked().threads.push_back(std::move(thread));
}

void join_parked_threads() {
  std::vector<Thread> others;
  MutexLock lock(parked().mutex);
  auto& all = parked().threads;
  const auto mine =
      std::stable_partition(all.begin(), all.end(), [](const Thread& thread) { return thread.is_current(); });
  std::move(mine, all.end(), std::back_inserter(others));
  all.erase(mine, all.end());
  lock.unlock();
}

}  // namespace gradwire::internal
