// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/live_groups_internal.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/mutex.h"

namespace gradwire::internal {
namespace {

struct Entry {
  ProcessGroup* group = nullptr;
  std::shared_ptr<ProcessGroup> for_layers;
  std::shared_ptr<AbortNote> aborted;  // once asked for
};

struct List {
  Mutex mutex;
  std::vector<Entry> groups GRADWIRE_GUARDED_BY(mutex);

  // Null for a group that a forked child inherited.
  Entry* entry_of(const ProcessGroup& group) GRADWIRE_REQUIRES(mutex) {
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const Entry& entry) { return entry.group == &group; });
    return found == groups.end() ? nullptr : &*found;
  }
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
  all.groups.push_back({&group, nullptr, nullptr});
}

void unlist_group(ProcessGroup& group) noexcept {
  std::shared_ptr<ProcessGroup> for_layers;  // goes without the lock, for which its own end waits
  List& all = list();
  MutexLock lock(all.mutex);
  std::erase_if(all.groups, [&](Entry& entry) {
    if (entry.group != &group) return false;
    for_layers = std::move(entry.for_layers);
    return true;
  });
}

std::vector<std::shared_ptr<ProcessGroup>> live_groups() {
  std::vector<std::shared_ptr<ProcessGroup>> alive;
  List& all = list();
  MutexLock lock(all.mutex);
  for (auto entry = all.groups.rbegin(); entry != all.groups.rend(); ++entry) {
    // A group that is being destroyed waits for the lock in unlist_group(); nobody holds it any more.
    if (auto held = entry->group->weak_from_this().lock()) alive.push_back(std::move(held));
  }
  return alive;
}

std::shared_ptr<ProcessGroup> kept_for_layers(const ProcessGroup& group) {
  List& all = list();
  MutexLock lock(all.mutex);
  const Entry* const entry = all.entry_of(group);
  return entry == nullptr ? nullptr : entry->for_layers;
}

void keep_for_layers(const ProcessGroup& group, std::shared_ptr<ProcessGroup> duplicate) {
  List& all = list();
  MutexLock lock(all.mutex);
  if (Entry* const entry = all.entry_of(group)) entry->for_layers.swap(duplicate);
}

std::shared_ptr<AbortNote> abort_note(const ProcessGroup& group) {
  List& all = list();
  MutexLock lock(all.mutex);
  Entry* const entry = all.entry_of(group);
  if (entry == nullptr) return std::make_shared<AbortNote>();
  if (entry->aborted == nullptr) entry->aborted = std::make_shared<AbortNote>();
  return entry->aborted;
}

}  // namespace gradwire::internal
