// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The parameters that a hook which steps parameters did not step.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/comm_hook.h"

namespace gradwire::internal {

// A step applies the average of a parameter, also when no rank used the parameter. So the memory of the inner hook is
// brought back only for parameters that were not stepped. Thread-safe.
class UnsteppedParameters final {
 public:
  // `parameter` is not stepped in this iteration. Needed for parameters in GradBucket::absent() only.
  void add(const std::string& parameter) {
    const MutexLock lock(mutex_);
    names_.insert(parameter);
  }
  // No parameter of `bucket` is stepped in this iteration.
  void add_absent_of(const GradBucket& bucket) {
    for (const std::size_t place : bucket.absent()) add(bucket.parameter_names()[place]);
  }
  // The parameters of `bucket` that need no gradient are not stepped in this iteration.
  void add_frozen_of(const GradBucket& bucket) {
    for (const std::size_t place : bucket.absent()) {
      if (!bucket.parameters()[place].requires_grad()) add(bucket.parameter_names()[place]);
    }
  }
  // CommHook::revert_unused() of `inner`, for those of `names` that were added since end_iteration().
  void revert_unused(CommHook& inner, const std::vector<std::string>& names) {
    std::vector<std::string> unstepped;
    {
      const MutexLock lock(mutex_);
      for (const std::string& name : names) {
        if (names_.contains(name)) unstepped.push_back(name);
      }
    }
    if (!unstepped.empty()) inner.revert_unused(unstepped);
  }
  void end_iteration() {
    const MutexLock lock(mutex_);
    names_.clear();
  }

 private:
  Mutex mutex_;
  std::set<std::string> names_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
