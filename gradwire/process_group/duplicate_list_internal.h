// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group's list of the groups that its dup() made.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The duplicates of one group, which are aborted with that group. The callers of dup() own the duplicates; the list
// holds weak pointers. Thread-safe.
class DuplicateList {
 public:
  // Adds a duplicate; aborts the duplicate when abort_all() was called before.
  void add(const std::shared_ptr<ProcessGroup>& duplicate);
  // For `group`, whose list this is and which is aborted: the groups that are being made of it fail too (AbortNote).
  void abort_all(const ProcessGroup& group, const std::string& reason);
  // For `group`, whose list this is and which is shut down. Forgets the duplicates, which go on without the group, and
  // lets go of the one that is kept for layers (live_groups_internal.h). Duplicates of a DeviceGroup go on for tensors
  // on the CPU alone: the communicator, which they share with the group, is shut down with it.
  void release(const ProcessGroup& group);

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<ProcessGroup>> duplicates_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<std::string> aborted_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
