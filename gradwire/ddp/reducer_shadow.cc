// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer on a rank that has joined: it takes part in the other ranks' iterations without a backward pass.
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {

std::vector<at::Tensor> Reducer::shadow_backward() {
  {
    MutexLock lock(mutex_);
    if (failure_.happened()) throw_failure();
    iteration_.expect_as_joined();
    iteration_.begin_pass();
    calls_.begin_pass();
    try {
      intake_.take_zeros(/*copies=*/!idle());
      launch_next();
    } catch (...) {
      fail_and_throw("an iteration of the ranks that have not joined");
    }
  }
  if (options_.delayed != nullptr) options_.delayed->shadow();
  finish();
  MutexLock lock(mutex_);
  return unused_anywhere();
}

}  // namespace gradwire::internal
