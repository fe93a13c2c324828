// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer's copies of gradients into buckets.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/gradient_copy_internal.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {

void Reducer::store_gradient(std::size_t parameter) {
  const c10::NoGradGuard no_grad;
  const BucketStore::Place place = store_.place(parameter);
  fillings_[place.bucket].filled.add_current(store_.parameter(parameter).device());
  if (store_.is_sparse(parameter)) return store_sparse(parameter);
  BucketStore::Bucket& bucket = store_.bucket(place.bucket);
  at::Tensor& slot = bucket.views[place.slot];
  at::Tensor& grad = store_.parameter(parameter).mutable_grad();
  // Else the group multiplies in the reduction; see job_of().
  const double factor = hook_ == nullptr && !group_multiplies_ && !divides_after() ? 1.0 / divisor_ : 1.0;
  warn_of_graph(grad);
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
  } else if (slot.is_cpu() && (!grad.defined() || !grad.requires_grad())) {
    store_.lend(parameter);
  }
}

// After backward(create_graph = true) a gradient has a graph, which the reduction does not keep.
void Reducer::warn_of_graph(const at::Tensor& grad) {
  if (!grad.defined() || !grad.requires_grad() || warned_of_graph_) return;
  warned_of_graph_ = true;
  log::warn(
      "DistributedDataParallel averages gradients, but not their graphs: after backward(create_graph = true) a second "
      "backward pass through .grad brings derivatives of this rank's loss alone. This is said once.");
}

void Reducer::store_sparse(std::size_t parameter) {
  const at::Tensor& grad = store_.parameter(parameter).grad();
  if (grad.defined() && (grad.layout() != at::kSparse || grad.sparse_dim() != 1)) {
    throw InvalidArgument(
        concat("Parameter '", store_.name(parameter), "' of an embedding with sparse = true got a gradient of layout ",
               grad.layout(), " on rank ", group_->rank(),
               "; it is used elsewhere too, or its .grad was set by hand. Make its embedding with sparse = false."));
  }
  fillings_[store_.place(parameter).bucket].sparse = grad.defined() ? grad.detach() : at::Tensor();
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

// For a rank that has joined.
void Reducer::store_zeros(std::size_t parameter) {
  const c10::NoGradGuard no_grad;
  const BucketStore::Place place = store_.place(parameter);
  fillings_[place.bucket].filled.add_current(store_.parameter(parameter).device());
  if (store_.is_sparse(parameter)) {
    fillings_[place.bucket].sparse.reset();
    return;
  }
  // A tensor that holds the gradient of this rank's own last pass keeps its values.
  store_.reclaim(parameter);
  at::Tensor& slot = store_.bucket(place.bucket).views[place.slot];
  slot.zero_();
  if (!store_.is_lendable(parameter)) return;
  at::Tensor& grad = store_.parameter(parameter).mutable_grad();
  if (options_.gradient_as_bucket_view) {
    grad = slot;
  } else if (slot.is_cpu()) {
    store_.lend(parameter);
  } else {
    grad.reset();  // write_back() makes another tensor
  }
}

}  // namespace gradwire::internal
