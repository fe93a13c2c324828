// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer during a backward pass.
#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/ddp/backward_watch_internal.h"
#include "gradwire/ddp/gradient_copy_internal.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {
namespace {

// From here on a bucket does not stay in the cache until it is read again; docs/decisions/0003-streamed-stores.md has
// the measurement.
constexpr std::size_t kLargeBucketBytes = std::size_t{8} << 20;

bool is_large(const BucketStore::Bucket& bucket) { return bucket.buffer.nbytes() >= kLargeBucketBytes; }

}  // namespace

// What is known of the graph before the first gradient comes.
void Reducer::begin_pass() {
  if (pass_begun_) return;
  pass_begun_ = true;
  reducing_ = true;
  if (use_.kind() == GraphKind::every_parameter) return;
  try {
    if (use_.learning()) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [self = shared_from_this()] { self->end_of_learning(); });
      return;
    }
    for (const std::size_t parameter : use_.absent()) take_absent(parameter);
    launch_ready();
  } catch (...) {
    fail_and_throw("backward, at its start");
  }
}

// Autograd calls this after it has accumulated into .grad.
void Reducer::on_gradient(std::size_t parameter) {
  MutexLock lock(mutex_);
  const bool defined = store_.parameter(parameter).grad().defined();
  use_.touch(parameter, defined);
  if (!expecting_) return;
  // Most failures of other ranks reach this one's lanes while backward still runs: no use in going on.
  if (failed_) throw_failure();
  watch_pass();
  begin_pass();
  try {
    if (!use_.complete(parameter)) return;
    if (ready_[parameter]) {
      throw InvalidArgument(concat(
          "Parameter '", store_.name(parameter), "' got a second gradient on rank ", group_->rank(),
          " in one synchronized iteration. Run one backward pass for each forward pass (no_sync() accumulates); with ",
          "find_unused_parameters, return every tensor that the loss is made of from forward(); and where a parameter "
          "is used inside several re-entrant checkpoints, set static_graph, if every iteration uses it as often."));
    }
    if (!defined) use_.keep(parameter, {});
    take_gradient(parameter);
    launch_ready();
  } catch (...) {
    fail_and_throw(concat("backward, at parameter '", store_.name(parameter), "'"));
  }
}

void Reducer::take_gradient(std::size_t parameter) {
  ready_[parameter] = true;
  if (iteration_ == 0 && !order_loaded_) ready_order_.push_back(static_cast<std::int64_t>(parameter));
  if (!idle()) store_gradient(parameter);
  --pending_[store_.place(parameter).bucket];
}

void Reducer::take_absent(std::size_t parameter) {
  use_.keep(parameter, store_.parameter(parameter).grad());
  take_gradient(parameter);
}

// The first pass over a fixed graph has ended: now it is known which gradients there are.
void Reducer::end_of_learning() {
  MutexLock lock(mutex_);
  if (!expecting_ || failed_) return;
  try {
    for (const std::size_t parameter : use_.order_of_completion()) {
      const bool used = use_.fired(parameter) && store_.parameter(parameter).grad().defined();
      used ? take_gradient(parameter) : take_absent(parameter);
    }
    launch_ready();
  } catch (...) {
    fail_and_throw("the end of its first backward pass");
  }
}

// One notice a pass: re-entrant passes (checkpoints) are passes of their own.
void Reducer::watch_pass() {
  const int pass = current_backward_pass();
  if (pass == watched_pass_) return;
  watched_pass_ = pass;
  watch_backward_pass([weak = weak_from_this()](const std::exception_ptr& error) {
    if (const auto reducer = weak.lock()) reducer->backward_failed(error);
  });
}

void Reducer::backward_failed(const std::exception_ptr& error) {
  MutexLock lock(mutex_);
  if (!expecting_) return;
  fail(error, "its backward pass");
  running_.wait();
  store_.make_gradients_private();
}

void Reducer::store_gradient(std::size_t parameter) {
  const c10::NoGradGuard no_grad;
  const BucketStore::Place place = store_.place(parameter);
  BucketStore::Bucket& bucket = store_.bucket(place.bucket);
  at::Tensor& slot = bucket.views[place.slot];
  at::Tensor& grad = store_.parameter(parameter).mutable_grad();
  // Our own groups multiply while they reduce; see plain_op().
  const double factor = hook_ == nullptr && !ours_ ? 1.0 / group_->size() : 1.0;
  if (grad.defined() && store_.is_slot(grad, parameter)) {
    if (factor != 1.0) slot.mul_(factor);
    return;
  }
  store_.reclaim(parameter);
  if (grad.defined()) {
    require_storable(parameter, grad, slot);
    copy_scaled(slot, grad.detach(), factor, is_large(bucket));
  } else {
    slot.zero_();
  }
  if (options_.gradient_as_bucket_view) {
    grad = slot;
  } else if (!grad.defined() || !grad.requires_grad()) {
    store_.lend(parameter);
  }
}

void Reducer::require_storable(std::size_t parameter, const at::Tensor& grad, const at::Tensor& slot) const {
  if (grad.layout() != at::kStrided) {
    throw UnsupportedError(
        concat("Parameter '", store_.name(parameter),
               "' got a sparse gradient; those are not supported yet. Make its embedding with sparse = false."));
  }
  if (grad.sizes() != slot.sizes() || grad.scalar_type() != slot.scalar_type() || grad.device() != slot.device()) {
    throw InvalidArgument(
        concat("The gradient of '", store_.name(parameter), "' is ", grad.scalar_type(), grad.sizes(), " on ",
               grad.device(), ", but the parameter was ", slot.scalar_type(), slot.sizes(), " on ", slot.device(),
               " when DistributedDataParallel was made. Do not change parameters after wrapping the module."));
  }
}

void Reducer::launch_ready() {
  const std::size_t count = store_.bucket_count();
  if (next_bucket_ == count) return;
  while (next_bucket_ < count && pending_[next_bucket_] == 0) {
    const std::size_t bucket = next_bucket_++;
    if (!idle()) launch(bucket);
  }
  if (next_bucket_ < count) return;
  if (!idle()) use_.share(*control_);
  // Not earlier: a re-entrant pass ends before the others, and its callbacks would find buckets that are not ready.
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->finish(); });
}

void Reducer::launch(std::size_t bucket) {
  trace::point("ddp.launch", group_->rank(), bucket);
  const int lanes = usable_lanes();
  if (lanes == 0) {
    run_here(bucket);
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

void Reducer::run_on_lane(std::size_t bucket, Lane& lane, const CallTag& tag) {
  if (failed_) return;
  try {
    const c10::NoGradGuard no_grad;
    const LaneScope scope(lane.routes(), tag);
    if (hook_ == nullptr) {
      keep_result(bucket, reduce_plain(bucket, lane.group()));
      return;
    }
    const Future future = run_hook(bucket, lane.group(), tag.iteration);
    future->waitAndThrow();
    keep_result(bucket, checked(bucket, tensor_of(*future)));
  } catch (...) {
    fail(std::current_exception(), concat("the reduction of bucket ", bucket));
  }
}

Future Reducer::run_hook(std::size_t bucket, ProcessGroup& group, std::uint32_t iteration) {
  const BucketStore::Bucket& held = store_.bucket(bucket);
  GradBucket argument(held.layout, held.buffer, group, group_->size(), bucket + 1 == store_.bucket_count(), iteration);
  Future future = hook_->run(argument);
  if (!future) throw InvalidArgument(concat("The hook '", hook_->traits().name, "' returned a null future."));
  return future;
}

// Over a user's group the gradients have been multiplied by 1/N already.
ReduceOp Reducer::plain_op() const { return ours_ ? ReduceOp::premul_sum(1.0 / group_->size()) : ReduceOp::sum(); }

// Sums the bucket where it lies.
at::Tensor Reducer::reduce_plain(std::size_t bucket, ProcessGroup& group) {
  const at::Tensor& buffer = store_.bucket(bucket).buffer;
  AllReduceOptions options;
  options.async = false;
  options.op = plain_op();
  group.all_reduce({buffer}, options)->wait();
  return buffer;
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
  if (options_.gradient_as_bucket_view && !result.is_same(buffer)) {
    if (result.data_ptr() != buffer.data_ptr()) buffer.copy_(result);
    result = buffer;
  }
  flights_[bucket].result = std::move(result);
}

// Without lanes: on the thread of the backward pass, PyTorch's model. What is one collective is awaited at the end.
void Reducer::run_here(std::size_t bucket) {
  const c10::NoGradGuard no_grad;
  Flight& flight = flights_[bucket];
  ProcessGroup& group = routes_here_.empty() ? *group_ : *routes_here_.front().duplicate;
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
    if (flight.future) {
      work_from_future(flight.future)->wait();
    } else {
      flight.work->wait();
    }
    // A collective writes in place; what its future holds may be anything, even nothing, in a user's group.
    keep_result(bucket, hook_ == nullptr ? store_.bucket(bucket).buffer : checked(bucket, tensor_of(*flight.future)));
  }
}

// The end of the backward pass in which the last bucket became ready.
void Reducer::finish() {
  MutexLock lock(mutex_);
  if (!expecting_) return;
  if (!idle()) {
    if (usable_lanes() == 0 && !failed_) {
      try {
        await_here();
      } catch (...) {
        fail(std::current_exception(), "the reduction of its gradients");
      }
    }
    try {
      running_.wait_unless_interrupted();
    } catch (...) {
      fail(std::current_exception(), "the reduction of its gradients");
    }
    if (failed_) throw_failure();
    if (!options_.gradient_as_bucket_view) write_back();
    try {
      use_.restore(store_.parameters());
    } catch (...) {
      fail_and_throw("the exchange of which parameters were used");
    }
  }
  use_.end_iteration();
  ++iteration_;
  begin_iteration();
}

// Averages that are not where the gradients are: a hook returned memory of its own, or a gradient could not be lent.
void Reducer::write_back() {
  const c10::NoGradGuard no_grad;
  for (std::size_t bucket = 0; bucket < flights_.size(); ++bucket) {
    const BucketStore::Bucket& held = store_.bucket(bucket);
    const at::Tensor& result = flights_[bucket].result;
    const bool in_place = result.const_data_ptr() == held.buffer.const_data_ptr();
    const std::vector<at::Tensor> made = in_place ? std::vector<at::Tensor>{} : held.layout->views(result);
    const std::vector<at::Tensor>& views = in_place ? held.views : made;
    for (std::size_t slot = 0; slot < views.size(); ++slot) {
      at::Tensor& grad = held.layout->parameters[slot].mutable_grad();
      if (!grad.defined()) {
        grad = at::empty_strided(views[slot].sizes(), views[slot].strides(), views[slot].options()).copy_(views[slot]);
      } else if (grad.const_data_ptr() != views[slot].const_data_ptr()) {
        copy_scaled(grad, views[slot], 1.0, is_large(held));
      }
    }
  }
}

}  // namespace gradwire::internal
