// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer at the end of an iteration: it writes the averages into the gradients.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "gradwire/base/trace.h"
#include "gradwire/ddp/backward_watch_internal.h"
#include "gradwire/ddp/gradient_copy_internal.h"
#include "gradwire/ddp/hook_scope_internal.h"
#include "gradwire/ddp/reducer_internal.h"
#include "gradwire/process_group/watched_call_internal.h"

namespace gradwire::internal {

// Called at the end of the backward pass in which the last bucket became ready.
void Reducer::finish() {
  MutexLock lock(mutex_);
  if (!iteration_.expected()) return;
  trace::point("ddp.wait", group_->rank(), iteration_.number());
  std::vector<BucketResult> results;
  if (!idle()) {
    results = await_results();
    const c10::NoGradGuard no_grad;
    for (std::size_t bucket = 0; bucket < results.size(); ++bucket) write_back(bucket, results[bucket].average);
    try {
      use_.restore(store_.parameters());
    } catch (...) {
      fail_and_throw("the exchange of which parameters were used");
    }
    try {
      const HookScope in_hook(this);
      if (hook_ != nullptr) hook_->end_iteration();
    } catch (...) {
      fail_and_throw("the hook's end of the iteration");
    }
  }
  ended_inside_ = outer_pass_ != -1 && current_backward_pass() != outer_pass_;
  end_iteration(results);
  trace::point("ddp.finished", group_->rank(), iteration_.number());
}

std::vector<BucketResult> Reducer::await_results() {
  const ProfiledRange range([] { return "gradwire:wait for buckets"; });
  const WaitsForRanks waits;
  if (!failure_.happened()) {
    try {
      launcher_.wait();
      end_on_devices();
    } catch (...) {
      failure_.report(std::current_exception(), "the reduction of its gradients");
    }
  }
  if (failure_.happened()) throw_failure();
  return launcher_.take_results();
}

// Copies averages that do not lie in the gradients' memory: a hook returned other memory, a gradient could not be lent,
// or the bucket has another dtype.
void Reducer::write_back(std::size_t bucket, const at::Tensor& average) {
  const BucketStore::Bucket& held = store_.bucket(bucket);
  if (held.sparse) {
    store_.parameter(store_.members(bucket).front()).mutable_grad() = average;
    return;
  }
  const bool in_place = average.const_data_ptr() == held.buffer.const_data_ptr();
  const std::vector<at::Tensor> made = in_place ? std::vector<at::Tensor>{} : held.layout->views(average);
  const std::vector<at::Tensor>& views = in_place ? held.views : made;
  for (std::size_t slot = 0; slot < views.size(); ++slot) {
    const std::size_t parameter = store_.members(bucket)[slot];
    const bool lendable = store_.is_lendable(parameter);
    if (lendable && options_.gradient_as_bucket_view) continue;
    at::Tensor& grad = held.layout->parameters[slot].mutable_grad();
    const at::ScalarType dtype = store_.dtype(parameter);
    if (!grad.defined() || grad.scalar_type() != dtype) {
      const auto options = views[slot].options().dtype(dtype);
      grad = at::empty_strided(views[slot].sizes(), views[slot].strides(), options).copy_(views[slot]);
    } else if (grad.const_data_ptr() != views[slot].const_data_ptr()) {
      copy_scaled(grad, views[slot], 1.0, held.is_large());
    }
  }
}

void Reducer::end_iteration(const std::vector<BucketResult>& results) {
  use_.end_iteration(iteration_.joined());
  if (iteration_.number() == 0 && !order_loaded_)
    ready_order_.assign(iteration_.order().begin(), iteration_.order().end());
  if (iteration_.joined()) {
    report_.end_iteration(nullptr, {}, use_.unused());
  } else {
    std::optional<Iteration::Clock::time_point> end;
    for (const BucketResult& result : results) end = end ? std::max(*end, result.end) : result.end;
    const DdpTimes times = iteration_.times(end);
    report_.end_iteration(&times, iteration_.order(), use_.unused());
  }
  iteration_.end();
  begin_iteration();
}

}  // namespace gradwire::internal
