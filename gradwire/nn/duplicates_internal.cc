// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/nn/duplicates_internal.h"

#include <map>

#include "gradwire/base/mutex.h"

namespace gradwire::internal {
namespace {

using Weak = std::weak_ptr<ProcessGroup>;

struct Known {
  Mutex mutex;
  std::map<Weak, Weak, std::owner_less<>> duplicates GRADWIRE_GUARDED_BY(mutex);
};

Known& known() {
  static Known instance;
  return instance;
}

}  // namespace

std::shared_ptr<ProcessGroup> shared_duplicate(const std::shared_ptr<ProcessGroup>& group) {
  {
    MutexLock lock(known().mutex);
    const auto found = known().duplicates.find(group);
    if (found != known().duplicates.end()) {
      if (auto duplicate = found->second.lock()) return duplicate;
    }
  }
  // Not under the lock: ranks may be threads, and dup() waits for the others.
  std::shared_ptr<ProcessGroup> duplicate = group->dup();
  if (duplicate == nullptr) return group;
  MutexLock lock(known().mutex);
  std::erase_if(known().duplicates, [](const auto& entry) { return entry.second.expired(); });
  known().duplicates.insert_or_assign(group, duplicate);
  return duplicate;
}

}  // namespace gradwire::internal
