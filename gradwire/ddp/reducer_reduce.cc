// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the Reducer reduces one bucket, on a lane or on the thread of the backward pass, and where the average goes.
#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/ddp/gradient_copy_internal.h"
#include "gradwire/ddp/hook_agreement_internal.h"
#include "gradwire/ddp/reducer_internal.h"
#include "gradwire/ddp/sparse_gradient_internal.h"

namespace gradwire::internal {

void Reducer::launch(std::size_t bucket) {
  trace::point("ddp.launch", group_->rank(), bucket);
  if (bucket == 0) marks_.first_launch = Clock::now();
  flights_[bucket].filled.record();
  const int lanes = usable_lanes();
  if (lanes == 0) {
    follow_gradients(bucket);
    naming_hook(hook_.get(), group_->rank(), [&] { run_here(bucket); });
    mark_reduced(bucket);
    return;
  }
  Lane& lane = *lanes_[bucket % static_cast<std::size_t>(lanes)];
  running_.add();
  try {
    lane.submit([this, bucket, &lane, state = at::ThreadLocalState(), tag = tag_of(bucket)] {
      {
        const at::ThreadLocalStateGuard caller(state);
        run_on_lane(bucket, lane, tag);
      }
      running_.done();
    });
  } catch (...) {
    running_.done();
    throw;
  }
}

at::Device Reducer::device_of(std::size_t bucket) const { return store_.bucket(bucket).layout->device; }

// The current stream of the bucket's device goes on when the gradients are there.
void Reducer::follow_gradients(std::size_t bucket) {
  flights_[bucket].filled.wait();
  keep_for_current_stream(store_.bucket(bucket).buffer);
  keep_for_current_stream(flights_[bucket].sparse);
}

void Reducer::mark_reduced(std::size_t bucket) {
  flights_[bucket].reduced.add_current(device_of(bucket));
  flights_[bucket].reduced.record();
}

// The caller's streams go on when those of the lanes have got so far, also after an error.
void Reducer::follow_lanes() {
  for (const Flight& flight : flights_) {
    flight.reduced.wait();
    keep_for_current_stream(flight.result);
  }
}

void Reducer::run_on_lane(std::size_t bucket, Lane& lane, const CallTag& tag) {
  if (failed_) return;
  const auto failed = [&] {
    fail(with_hook_named(std::current_exception(), hook_.get(), group_->rank()),
         concat("the reduction of bucket ", bucket));
  };
  try {
    const at::Device device = device_of(bucket);
    c10::OptionalStreamGuard on_stream;
    if (!device.is_cpu()) on_stream.reset_stream(lane.stream(device));
    try {
      reduce_on_lane(bucket, lane, tag);
    } catch (...) {
      failed();
    }
    mark_reduced(bucket);  // after an error too: what the stream has queued may write into the bucket yet
  } catch (...) {
    failed();
  }
}

void Reducer::reduce_on_lane(std::size_t bucket, Lane& lane, const CallTag& tag) {
  const c10::NoGradGuard no_grad;
  const LaneScope scope(lane.routes(), tag);
  follow_gradients(bucket);
  if (store_.bucket(bucket).sparse) {
    keep_result(bucket, reduce_sparse(bucket, lane.group(), {}));
    return;
  }
  compare_hooks(bucket, lane.group(), tag.iteration);
  if (hook_ == nullptr) {
    keep_result(bucket, reduce_plain(bucket, lane.group()));
    return;
  }
  const Future future = run_hook(bucket, lane.group(), tag.iteration);
  future->waitAndThrow();
  keep_result(bucket, checked(bucket, tensor_of(*future)));
}

Future Reducer::run_hook(std::size_t bucket, ProcessGroup& group, std::uint32_t iteration) {
  const BucketStore::Bucket& held = store_.bucket(bucket);
  GradBucket argument(held.layout, held.buffer, group, divisor_, bucket == store_.last_dense_bucket(), iteration,
                      joined_);
  return gradwire::run_hook(*hook_, argument);
}

// Over a user's group the gradients have been multiplied by 1/N already.
ReduceOp Reducer::plain_op() const {
  return ours_ && !divides_after() ? ReduceOp::premul_sum(1.0 / divisor_) : ReduceOp::sum();
}

// Sums the bucket where it lies.
at::Tensor Reducer::reduce_plain(std::size_t bucket, ProcessGroup& group) {
  const at::Tensor& buffer = store_.bucket(bucket).buffer;
  AllReduceOptions options;
  options.async = false;
  options.op = plain_op();
  group.all_reduce({buffer}, options)->wait();
  return plain_result(bucket);
}

at::Tensor Reducer::plain_result(std::size_t bucket) {
  at::Tensor buffer = store_.bucket(bucket).buffer;
  if (divides_after()) buffer.div_(divisor_);
  return buffer;
}

at::Tensor Reducer::reduce_sparse(std::size_t bucket, ProcessGroup& group, const CallTag& tag) {
  const at::Tensor& parameter = store_.parameter(store_.members(bucket).front());
  return average_sparse(group, flights_[bucket].sparse, parameter.sizes(), parameter.options(), divisor_, tag);
}

at::Tensor Reducer::checked(std::size_t bucket, at::Tensor result) const {
  const at::Tensor& buffer = store_.bucket(bucket).buffer;
  if (result.defined() && result.layout() == at::kStrided && result.sizes() == buffer.sizes() &&
      result.scalar_type() == buffer.scalar_type() && result.device() == buffer.device()) {
    return result.is_contiguous() ? result : result.contiguous();
  }
  const std::string got = result.defined() ? concat(result.scalar_type(), result.sizes(), " on ", result.device())
                                           : std::string("an undefined tensor");
  throw InvalidArgument(concat("The hook '", hook_->traits().name, "' returned ", got, " for bucket ", bucket,
                               " on rank ", group_->rank(), "; it must return ", buffer.scalar_type(), buffer.sizes(),
                               " on ", buffer.device(), ", like the bucket's buffer."));
}

void Reducer::keep_result(std::size_t bucket, at::Tensor result) {
  const at::Tensor& buffer = store_.bucket(bucket).buffer;
  if (options_.gradient_as_bucket_view && buffer.defined() && !result.is_same(buffer)) {
    if (result.data_ptr() != buffer.data_ptr()) buffer.copy_(result);
    result = buffer;
  }
  flights_[bucket].result = std::move(result);
  flights_[bucket].end = Clock::now();
}

// Without lanes: on the thread of the backward pass, PyTorch's model. What is one collective is awaited at the end.
void Reducer::run_here(std::size_t bucket) {
  const c10::NoGradGuard no_grad;
  Flight& flight = flights_[bucket];
  ProcessGroup& group = routes_here_.empty() ? *group_ : *routes_here_.front().duplicate;
  if (store_.bucket(bucket).sparse) {
    keep_result(bucket, reduce_sparse(bucket, group, tag_of(bucket)));
    return;
  }
  if (routes_here_.empty()) {
    compare_hooks(bucket, group, iteration_);
  } else {
    const LaneScope with_tags(routes_here_, tag_of(bucket));
    compare_hooks(bucket, group, iteration_);
  }
  if (hook_ == nullptr) {
    AllReduceOptions options;
    options.op = plain_op();
    options.tag = tag_of(bucket);
    flight.work = group.all_reduce({store_.bucket(bucket).buffer}, options);
    try {
      flight.future = flight.work->future();
    } catch (const UnsupportedError&) {
      // A Work that can only be waited for.
    }
    return;
  }
  if (routes_here_.empty()) {
    flight.future = run_hook(bucket, group, iteration_);
    if (hook_->traits().single_collective) return;
  } else {
    const LaneScope scope(routes_here_, tag_of(bucket));
    flight.future = run_hook(bucket, group, iteration_);
  }
  work_from_future(flight.future)->wait();
  keep_result(bucket, checked(bucket, tensor_of(*flight.future)));
}

void Reducer::await_here() {
  const c10::NoGradGuard no_grad;
  for (std::size_t bucket = 0; bucket < flights_.size(); ++bucket) {
    Flight& flight = flights_[bucket];
    if (flight.result.defined()) continue;
    naming_hook(hook_.get(), group_->rank(), [&] {
      if (flight.future) {
        work_from_future(flight.future)->wait();
      } else {
        flight.work->wait();
      }
    });
    // A collective writes in place; what its future holds may be anything, even nothing, in a user's group.
    keep_result(bucket, hook_ == nullptr ? plain_result(bucket) : checked(bucket, tensor_of(*flight.future)));
  }
}

void Reducer::write_back() {
  const c10::NoGradGuard no_grad;
  for (std::size_t bucket = 0; bucket < flights_.size(); ++bucket) write_back(bucket);
}

// Averages that are not where the gradients are: a hook returned memory of its own, a gradient could not be lent, the
// bucket has another type.
void Reducer::write_back(std::size_t bucket) {
  const BucketStore::Bucket& held = store_.bucket(bucket);
  const at::Tensor& result = flights_[bucket].result;
  if (held.sparse) {
    store_.parameter(store_.members(bucket).front()).mutable_grad() = result;
    return;
  }
  const bool in_place = result.const_data_ptr() == held.buffer.const_data_ptr();
  const std::vector<at::Tensor> made = in_place ? std::vector<at::Tensor>{} : held.layout->views(result);
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

}  // namespace gradwire::internal
