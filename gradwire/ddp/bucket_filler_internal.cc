// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/bucket_filler_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/gradient_copy_internal.h"
#include "gradwire/ddp/sparse_gradient_internal.h"

namespace gradwire::internal {

void BucketFiller::begin() {
  fillings_.clear();
  fillings_.resize(store_.bucket_count());
}

void BucketFiller::fill(std::size_t parameter, double factor) {
  const c10::NoGradGuard no_grad;
  const BucketStore::Place place = store_.place(parameter);
  Filling& filling = fillings_[place.bucket];
  filling.filled.add_current(store_.parameter(parameter).device());
  if (store_.is_sparse(parameter)) return fill_sparse(parameter, filling);
  BucketStore::Bucket& bucket = store_.bucket(place.bucket);
  at::Tensor& slot = bucket.views[place.slot];
  at::Tensor& grad = store_.parameter(parameter).mutable_grad();
  warn_of_graph(grad);
  if (grad.defined() && store_.is_slot(grad, parameter)) {
    if (store_.is_lendable(parameter)) {
      if (factor != 1.0) slot.mul_(factor);
      return;
    }
    grad = grad.clone();  // for the other DDP object
  }
  store_.reclaim(parameter);
  if (grad.defined()) {
    require_storable(parameter, grad, slot);
    copy_scaled(slot, grad.detach(), factor, bucket.is_large());
  } else {
    slot.zero_();
  }
  if (!store_.is_lendable(parameter)) return;
  if (options_.keeps_views) {
    grad = slot;
  } else if (slot.is_cpu() && (!grad.defined() || !grad.requires_grad())) {
    store_.lend(parameter);
  }
}

// After backward(create_graph = true) a gradient has a graph, which the reduction does not keep.
void BucketFiller::warn_of_graph(const at::Tensor& grad) {
  if (!grad.defined() || !grad.requires_grad() || warned_of_graph_) return;
  warned_of_graph_ = true;
  log::warn(
      "DistributedDataParallel averages gradients, but not their graphs: after backward(create_graph = true) a second "
      "backward pass through .grad brings derivatives of this rank's loss alone. This is said once.");
}

void BucketFiller::fill_sparse(std::size_t parameter, Filling& filling) const {
  const at::Tensor& grad = store_.parameter(parameter).grad();
  if (grad.defined() && (grad.layout() != at::kSparse || grad.sparse_dim() != 1)) {
    throw InvalidArgument(
        concat("Parameter '", store_.name(parameter), "' of an embedding with sparse = true got a gradient of layout ",
               grad.layout(), " on rank ", options_.rank,
               "; it is used elsewhere too, or its .grad was set by hand. Make its embedding with sparse = false."));
  }
  filling.sparse = grad.defined() ? grad.detach() : at::Tensor();
}

void BucketFiller::require_storable(std::size_t parameter, const at::Tensor& grad, const at::Tensor& slot) const {
  if (grad.layout() != at::kStrided) {
    throw UnsupportedError(
        concat("Parameter '", store_.name(parameter),
               "' got a sparse gradient; DistributedDataParallel expects those of torch::nn::Embedding and "
               "EmbeddingBag with sparse = true alone. Make it dense: to_dense()."));
  }
  const bool same_type = grad.scalar_type() == slot.scalar_type() || options_.converts;
  if (grad.sizes() != slot.sizes() || !same_type || grad.device() != slot.device()) {
    throw InvalidArgument(
        concat("The gradient of '", store_.name(parameter), "' is ", grad.scalar_type(), grad.sizes(), " on ",
               grad.device(), ", but the parameter was ", slot.scalar_type(), slot.sizes(), " on ", slot.device(),
               " when DistributedDataParallel was made. Do not change parameters after wrapping the module."));
  }
}

void BucketFiller::fill_zeros(std::size_t parameter) {
  const c10::NoGradGuard no_grad;
  const BucketStore::Place place = store_.place(parameter);
  Filling& filling = fillings_[place.bucket];
  filling.filled.add_current(store_.parameter(parameter).device());
  if (store_.is_sparse(parameter)) {
    filling.sparse.reset();
    return;
  }
  store_.reclaim(parameter);
  at::Tensor& slot = store_.bucket(place.bucket).views[place.slot];
  slot.zero_();
  if (!store_.is_lendable(parameter)) return;
  at::Tensor& grad = store_.parameter(parameter).mutable_grad();
  if (options_.keeps_views) {
    grad = slot;
  } else if (slot.is_cpu()) {
    store_.lend(parameter);
  } else {
    grad.reset();  // write_back() makes another tensor
  }
}

void BucketFiller::write_back(std::size_t bucket, const at::Tensor& average) {
  const c10::NoGradGuard no_grad;
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
    at::Tensor& grad = held.layout->parameters[slot].mutable_grad();
    if (options_.keeps_views && grad.defined() && store_.is_slot(grad, parameter)) continue;
    const at::ScalarType dtype = store_.dtype(parameter);
    if (!grad.defined() || grad.scalar_type() != dtype) {
      const auto options = views[slot].options().dtype(dtype);
      grad = at::empty_strided(views[slot].sizes(), views[slot].strides(), options).copy_(views[slot]);
    } else if (grad.const_data_ptr() != views[slot].const_data_ptr()) {
      copy_scaled(grad, views[slot], 1.0, held.is_large());
    }
  }
}

void BucketFiller::define(std::size_t parameter) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& of = store_.parameter(parameter);
  if (of.grad().defined()) return;
  const auto options = of.options().dtype(store_.dtype(parameter)).requires_grad(false);
  of.mutable_grad() =
      store_.is_sparse(parameter) ? no_rows(of.sizes(), options).coalesce() : at::zeros_like(of, options);
}

}  // namespace gradwire::internal
