// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer on a rank that has joined: it takes part in the other ranks' iterations without a backward pass.
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {

void Reducer::shadow_backward() {
  {
    MutexLock lock(mutex_);
    if (failure_.happened()) throw_failure();
    iteration_.expect_as_joined();
    iteration_.begin_pass();
    reducing_ = true;
    try {
      for (std::size_t bucket = 0; bucket < store_.bucket_count(); ++bucket) {
        for (const std::size_t parameter : store_.members(bucket)) {
          if (use_.kind() != GraphKind::every_parameter) use_.keep(parameter, store_.parameter(parameter).grad());
          iteration_.take(parameter, bucket);
          if (!idle()) filler_.fill_zeros(parameter);
        }
      }
      launch_next();
    } catch (...) {
      fail_and_throw("an iteration of the ranks that have not joined");
    }
  }
  finish();
}

}  // namespace gradwire::internal
