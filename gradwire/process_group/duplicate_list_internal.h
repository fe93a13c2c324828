// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a group knows of the groups that its dup() made.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The duplicates of one group, which end when it is aborted. They belong to whoever asked for them: what is kept are
// weak pointers. Thread-safe.
class DuplicateList {
 public:
  // A duplicate that comes after abort_all() is aborted here.
  void add(const std::shared_ptr<ProcessGroup>& duplicate);
  void abort_all(const std::string& reason);
  // Lets them go, as a group does that is shut down: they live on without it.
  void clear();

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<ProcessGroup>> duplicates_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<std::string> aborted_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
