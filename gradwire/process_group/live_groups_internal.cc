// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/live_groups_internal.h"

#include <pthread.h>

#include <algorithm>

#include "gradwire/base/mutex.h"

namespace gradwire::internal {
namespace {

struct List {
  Mutex mutex;
  std::vector<ProcessGroup*> groups GRADWIRE_GUARDED_BY(mutex);
};

// Never destroyed: groups in static variables leave it at the end of the process.
List*& current() {
  static List* list = std::make_unique<List>().release();
  return list;
}

List& list() {
  // The list that a forked child has copied may be locked for ever.
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { current() = std::make_unique<List>().release(); });
  static_cast<void>(registered);
  return *current();
}

}  // namespace

void list_group(ProcessGroup& group) {
  List& all = list();
  MutexLock lock(all.mutex);
  all.groups.push_back(&group);
}

void unlist_group(ProcessGroup& group) noexcept {
  List& all = list();
  MutexLock lock(all.mutex);
  std::erase(all.groups, &group);
}

std::vector<std::shared_ptr<ProcessGroup>> live_groups() {
  std::vector<std::shared_ptr<ProcessGroup>> alive;
  List& all = list();
  MutexLock lock(all.mutex);
  for (auto group = all.groups.rbegin(); group != all.groups.rend(); ++group) {
    // A group that is being destroyed waits for the lock in unlist_group(); nobody holds it any more.
    if (auto held = (*group)->weak_from_this().lock()) alive.push_back(std::move(held));
  }
  return alive;
}

}  // namespace gradwire::internal
