// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer on a rank that has joined: it takes part in the others' iterations without a backward pass.
#include <c10/core/GradMode.h>

#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {

void Reducer::shadow_backward() {
  {
    MutexLock lock(mutex_);
    if (failed_) throw_failure();
    expecting_ = true;
    pass_begun_ = true;
    reducing_ = true;
    joined_ = true;
    marks_.backward = Clock::now();
    try {
      for (std::size_t bucket = 0; bucket < store_.bucket_count(); ++bucket) {
        for (const std::size_t parameter : store_.members(bucket)) {
          if (use_.kind() != GraphKind::every_parameter) use_.keep(parameter, store_.parameter(parameter).grad());
          ready_[parameter] = true;
          if (iteration_ == 0 && !order_loaded_) ready_order_.push_back(static_cast<std::int64_t>(parameter));
          if (!idle()) store_zeros(parameter);
        }
        pending_[bucket] = 0;
      }
      launch_next();
    } catch (...) {
      fail_and_throw("an iteration of the ranks that have not joined");
    }
  }
  finish();
}

void Reducer::store_zeros(std::size_t parameter) {
  const c10::NoGradGuard no_grad;
  const BucketStore::Place place = store_.place(parameter);
  flights_[place.bucket].filled.add_current(store_.parameter(parameter).device());
  if (store_.is_sparse(parameter)) {
    flights_[place.bucket].sparse.reset();
    return;
  }
  // Whoever holds the gradient of this rank's own last pass keeps it.
  store_.reclaim(parameter);
  at::Tensor& slot = store_.bucket(place.bucket).views[place.slot];
  slot.zero_();
  if (!store_.is_lendable(parameter)) return;
  if (options_.gradient_as_bucket_view) {
    store_.parameter(parameter).mutable_grad() = slot;
  } else {
    store_.lend(parameter);
  }
}

}  // namespace gradwire::internal
