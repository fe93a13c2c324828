// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer during a backward pass.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/backward_watch_internal.h"
#include "gradwire/ddp/gradient_copy_internal.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {

// What is known of the graph before the first gradient comes.
void Reducer::begin_pass() {
  if (pass_begun_) return;
  pass_begun_ = true;
  reducing_ = true;
  marks_.backward = Clock::now();
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
  if (options_.on_pass && mixed_pass_ != current_backward_pass()) {
    mixed_pass_ = current_backward_pass();
    options_.on_pass();
  }
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
  gradient_order_.push_back(parameter);
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
  follow_lanes();
  store_.make_gradients_private();
}

void Reducer::store_gradient(std::size_t parameter) {
  const c10::NoGradGuard no_grad;
  const BucketStore::Place place = store_.place(parameter);
  flights_[place.bucket].filled.add_current(store_.parameter(parameter).device());
  if (store_.is_sparse(parameter)) return store_sparse(parameter);
  BucketStore::Bucket& bucket = store_.bucket(place.bucket);
  at::Tensor& slot = bucket.views[place.slot];
  at::Tensor& grad = store_.parameter(parameter).mutable_grad();
  // Our own groups multiply while they reduce; see plain_op().
  const double factor = hook_ == nullptr && !ours_ && !divides_after() ? 1.0 / divisor_ : 1.0;
  if (grad.defined() && store_.is_slot(grad, parameter)) {
    if (factor != 1.0) slot.mul_(factor);
    return;
  }
  store_.reclaim(parameter);
  if (grad.defined()) {
    require_storable(parameter, grad, slot);
    copy_scaled(slot, grad.detach(), factor, bucket.is_large());
  } else {
    slot.zero_();
  }
  if (!store_.is_lendable(parameter)) return;
  if (options_.gradient_as_bucket_view) {
    grad = slot;
  } else if (!grad.defined() || !grad.requires_grad()) {
    store_.lend(parameter);
  }
}

void Reducer::store_sparse(std::size_t parameter) {
  const at::Tensor& grad = store_.parameter(parameter).grad();
  if (grad.defined() && (grad.layout() != at::kSparse || grad.sparse_dim() != 1)) {
    throw InvalidArgument(
        concat("Parameter '", store_.name(parameter), "' of an embedding with sparse = true got a gradient of layout ",
               grad.layout(), " on rank ", group_->rank(),
               "; it is used elsewhere too, or its .grad was set by hand. Make its embedding with sparse = false."));
  }
  flights_[store_.place(parameter).bucket].sparse = grad.defined() ? grad.detach() : at::Tensor();
}

void Reducer::require_storable(std::size_t parameter, const at::Tensor& grad, const at::Tensor& slot) const {
  if (grad.layout() != at::kStrided) {
    throw UnsupportedError(
        concat("Parameter '", store_.name(parameter),
               "' got a sparse gradient; DistributedDataParallel expects those of torch::nn::Embedding and "
               "EmbeddingBag with sparse = true alone. Make it dense: to_dense()."));
  }
  const bool same_type = grad.scalar_type() == slot.scalar_type() || divides_after();
  if (grad.sizes() != slot.sizes() || !same_type || grad.device() != slot.device()) {
    throw InvalidArgument(
        concat("The gradient of '", store_.name(parameter), "' is ", grad.scalar_type(), grad.sizes(), " on ",
               grad.device(), ", but the parameter was ", slot.scalar_type(), slot.sizes(), " on ", slot.device(),
               " when DistributedDataParallel was made. Do not change parameters after wrapping the module."));
  }
}

void Reducer::launch_ready() {
  if (!launch_next()) return;
  // Not earlier: a re-entrant pass ends before the others, and its callbacks would find buckets that are not ready.
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->finish(); });
}

// Whether it launched the last one.
bool Reducer::launch_next() {
  const std::size_t count = store_.bucket_count();
  if (next_bucket_ == count) return false;
  while (next_bucket_ < count && pending_[next_bucket_] == 0) {
    const std::size_t bucket = next_bucket_++;
    if (!idle()) launch(bucket);
  }
  if (next_bucket_ < count) return false;
  marks_.last_gradient = Clock::now();
  if (!idle()) use_.share(*control_);
  return true;
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
    follow_lanes();
    write_back();
    try {
      use_.restore(store_.parameters());
    } catch (...) {
      fail_and_throw("the exchange of which parameters were used");
    }
    try {
      if (hook_ != nullptr) hook_->end_iteration();
    } catch (...) {
      fail_and_throw("the hook's end of the iteration");
    }
  }
  count_times();
  last_gradient_order_ = std::exchange(gradient_order_, {});
  use_.end_iteration(joined_);
  ++iteration_;
  begin_iteration();
}

}  // namespace gradwire::internal
