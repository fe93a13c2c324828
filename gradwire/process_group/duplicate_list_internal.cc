// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/duplicate_list_internal.h"

#include "gradwire/process_group/live_groups_internal.h"

namespace gradwire::internal {

void DuplicateList::add(const std::shared_ptr<ProcessGroup>& duplicate) {
  MutexLock lock(mutex_);
  if (!aborted_) {
    std::erase_if(duplicates_, [](const auto& weak) { return weak.expired(); });
    duplicates_.push_back(duplicate);
    return;
  }
  const std::string reason = *aborted_;
  lock.unlock();
  duplicate->abort(reason);
}

void DuplicateList::abort_all(const ProcessGroup& group, const std::string& reason) {
  abort_note(group)->write(reason);
  MutexLock lock(mutex_);
  if (!aborted_) aborted_ = reason;
  const std::vector<std::weak_ptr<ProcessGroup>> duplicates = duplicates_;
  lock.unlock();
  for (const auto& weak : duplicates) {
    if (const auto duplicate = weak.lock()) duplicate->abort(reason);
  }
}

void DuplicateList::release(const ProcessGroup& group) {
  MutexLock lock(mutex_);
  duplicates_.clear();
  lock.unlock();
  keep_for_layers(group, nullptr);
}

}  // namespace gradwire::internal
