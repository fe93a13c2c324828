// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The count of iterations in a hook that may run for several buckets at once, and that may continue from a checkpoint.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/grad_bucket.h"

namespace gradwire::internal {

// bucket.iteration() counts from the construction of the DDP object, and in a new group (enter_group()) from 0 again.
// IterationCount counts from the first iteration in which the hook runs, which is 0, and on over a checkpoint that is
// loaded and over groups. Thread-safe.
class IterationCount {
 public:
  // The number of the iteration of `bucket`.
  std::int64_t of(const GradBucket& bucket) GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const std::int64_t here = bucket.iteration();
    const bool is_new_group = here < here_;
    if (loaded_ || is_new_group) before_ = loaded_.value_or(next_) - here;
    loaded_.reset();
    here_ = here;
    const std::int64_t iteration = before_ + here;
    next_ = std::max(next_, iteration + 1);
    return iteration;
  }
  // The number of the next iteration. Call it between iterations.
  std::int64_t next() const GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return next_;
  }
  // The next bucket belongs to iteration `next`. Call it between iterations.
  void set_next(std::int64_t next) GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    loaded_ = next_ = next;
  }

 private:
  mutable Mutex mutex_;
  std::int64_t here_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // the last bucket's iteration()
  std::int64_t before_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::int64_t next_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::optional<std::int64_t> loaded_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // the number that comes next; none: they go on
};

}  // namespace gradwire::internal
