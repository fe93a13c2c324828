// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The parameters that one rank has frozen and another rank uses, under a hook which steps parameters.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/comm_hook.h"

namespace gradwire::internal {

// A hook does not step a parameter that needs no gradient. Where another rank uses the parameter, the hook steps it
// there, and the ranks' parameters come apart. A parameter that this rank used in a local pass (no_sync()) before it
// was frozen has a gradient that is not stepped here, and may be elsewhere. A hook that owns such an object calls
// watch() for each bucket, and the other methods in the methods of CommHook that have their names. Thread-safe.
class FrozenParameters final {
 public:
  // Notes the parameters of `bucket` that need no gradient on this rank. `steps(i)` returns whether the hook steps the
  // parameter in place i where the parameter needs a gradient.
  template <class Steps>
  void watch(const GradBucket& bucket, const Steps& steps) {
    const std::vector<std::size_t>& absent = bucket.absent();
    std::set<std::string> names, used;
    for (std::size_t place = 0; place < bucket.parameters().size(); ++place) {
      if (bucket.parameters()[place].requires_grad() || !steps(place)) continue;
      const bool is_absent = std::find(absent.begin(), absent.end(), place) != absent.end();
      (is_absent ? names : used).insert(bucket.parameter_names()[place]);
    }
    const MutexLock lock(mutex_);
    rank_ = bucket.group().rank();
    names_.merge(names);
    if (!bucket.joined()) used_.merge(used);
  }
  // No rank used the parameters `names`.
  void revert_unused(const std::vector<std::string>& names) {
    const MutexLock lock(mutex_);
    for (const std::string& name : names) names_.erase(name);
  }
  // Throws InvalidArgument where a rank used a parameter that watch() noted in this iteration.
  void end_iteration() {
    const MutexLock lock(mutex_);
    const std::set<std::string> names = std::exchange(names_, {});
    const std::set<std::string> used = std::exchange(used_, {});
    if (!used.empty()) {
      throw InvalidArgument(concat("The parameter '", *used.begin(), "' was frozen on rank ", rank_,
                                   " between the passes of one iteration, after a pass under no_sync() had brought its "
                                   "gradient: the hook did not step it here. Freeze parameters after a synchronized "
                                   "pass and before the next forward, on all ranks, and continue from a checkpoint."));
    }
    if (names.empty()) return;
    throw InvalidArgument(concat("The parameter '", *names.begin(), "' needs no gradient on rank ", rank_,
                                 ", and another rank used it in this iteration: the hook stepped it there and not "
                                 "here, or it was frozen there too, after a pass under no_sync(). Freeze the same "
                                 "parameters on all ranks, after a synchronized pass and before the next forward, and "
                                 "continue from a checkpoint."));
  }

 private:
  Mutex mutex_;
  std::set<std::string> names_ GRADWIRE_GUARDED_BY(mutex_);  // not used by this rank
  std::set<std::string> used_ GRADWIRE_GUARDED_BY(mutex_);   // used by this rank before they were frozen
  int rank_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::internal
