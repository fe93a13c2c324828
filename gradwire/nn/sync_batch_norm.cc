// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/nn/sync_batch_norm.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/nn/init.h>

#include <initializer_list>
#include <optional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/nn/sync_batch_norm_function_internal.h"

namespace gradwire {

namespace {

void require_fitting(const at::Tensor& input, std::int64_t channels) {
  if (!input.defined() || input.dim() < 2) {
    throw InvalidArgument(concat("SyncBatchNorm: the input has ", input.defined() ? input.dim() : 0,
                                 " dimensions; pass [N, C] or [N, C, ...]"));
  }
  if (input.size(1) != channels || input.size(1) == 0) {
    throw InvalidArgument(concat("SyncBatchNorm: the input has ", input.size(1),
                                 " channels in dimension 1; this layer was made for ", channels));
  }
  if (!at::isFloatingType(input.scalar_type())) {
    throw InvalidArgument(
        concat("SyncBatchNorm: the input is of ", c10::toString(input.scalar_type()), "; pass floating point numbers"));
  }
}

// The type in which torch's function can compute; not given: it takes the tensors as they are. It wants all tensors of
// the layer to have the type of the input, or to be float32 beside an input of a half type. In mixed precision the
// parameters have the type of the input, and the buffers their own.
std::optional<at::ScalarType> type_to_compute_in(const at::Tensor& input, std::initializer_list<at::Tensor> of_layer) {
  bool all_as_input = true, all_float = true;
  at::ScalarType common = at::promote_types(input.scalar_type(), at::kFloat);
  for (const at::Tensor& tensor : of_layer) {
    if (!tensor.defined()) continue;
    all_as_input = all_as_input && tensor.scalar_type() == input.scalar_type();
    all_float = all_float && tensor.scalar_type() == at::kFloat;
    common = at::promote_types(common, tensor.scalar_type());
  }
  if (all_as_input || (all_float && at::isReducedFloatingType(input.scalar_type()))) return std::nullopt;
  return common;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(torch::nn::BatchNormOptions options_in, std::shared_ptr<ProcessGroup> group)
    : options(std::move(options_in)), group_(std::move(group)) {
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(torch::nn::BatchNormOptions options_in, std::shared_ptr<ProcessGroup> group,
                                     at::Tensor weight_in, at::Tensor bias_in, at::Tensor mean, at::Tensor variance,
                                     at::Tensor batches)
    : options(std::move(options_in)),
      weight(std::move(weight_in)),
      bias(std::move(bias_in)),
      running_mean(std::move(mean)),
      running_var(std::move(variance)),
      num_batches_tracked(std::move(batches)),
      group_(std::move(group)) {
  register_all(weight.defined() && weight.requires_grad(), bias.defined() && bias.requires_grad());
}

void SyncBatchNormImpl::reset() {
  const auto channels = options.num_features();
  const bool affine = options.affine(), tracked = options.track_running_stats();
  weight = affine ? at::empty({channels}) : at::Tensor();
  bias = affine ? at::empty({channels}) : at::Tensor();
  running_mean = tracked ? at::zeros({channels}) : at::Tensor();
  running_var = tracked ? at::ones({channels}) : at::Tensor();
  num_batches_tracked = tracked ? at::zeros({}, at::kLong) : at::Tensor();
  register_all(affine, affine);
  reset_parameters();
}

void SyncBatchNormImpl::register_all(bool weight_trains, bool bias_trains) {
  weight = register_parameter("weight", weight, weight_trains);
  bias = register_parameter("bias", bias, bias_trains);
  running_mean = register_buffer("running_mean", running_mean);
  running_var = register_buffer("running_var", running_var);
  num_batches_tracked = register_buffer("num_batches_tracked", num_batches_tracked);
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!running_mean.defined()) return;
  const c10::NoGradGuard no_grad;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::reset_parameters() {
  reset_running_stats();
  if (!weight.defined()) return;
  torch::nn::init::ones_(weight);
  torch::nn::init::zeros_(bias);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "gradwire::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum().has_value()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ')';
}

void SyncBatchNormImpl::set_process_group(std::shared_ptr<ProcessGroup> group) {
  group_ = LayerGroup(std::move(group));
}

at::Tensor SyncBatchNormImpl::plain(const at::Tensor& input, bool own_statistics, double momentum) const {
  const auto run = [&](const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, const at::Tensor& mean,
                       const at::Tensor& variance) {
    return at::batch_norm(x, scale, shift, mean, variance, own_statistics, momentum, options.eps(),
                          at::globalContext().userEnabledCuDNN());
  };
  const auto type = type_to_compute_in(input, {weight, bias, running_mean, running_var});
  if (!type) return run(input, weight, bias, running_mean, running_var);
  const auto wide = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(*type) : tensor; };
  const at::Tensor mean = wide(running_mean), variance = wide(running_var);
  const at::Tensor output = run(input.to(*type), wide(weight), wide(bias), mean, variance).to(input.scalar_type());
  const c10::NoGradGuard no_grad;
  for (const auto& [buffer, moved] : {std::pair(running_mean, mean), {running_var, variance}}) {
    if (own_statistics && buffer.defined() && !buffer.is_same(moved)) buffer.copy_(moved);
  }
  return output;
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  require_fitting(input, options.num_features());
  if (!is_training()) {
    return plain(input, !running_mean.defined(), 0.0);
  }
  const std::shared_ptr<ProcessGroup> group = group_.duplicate();
  if (group == nullptr && input.numel() == input.size(1)) internal::refuse_one_value(nullptr);
  if (group == nullptr) return plain(input, true, internal::count_batch(num_batches_tracked, options.momentum()));
  return internal::sync_batch_norm(input, {weight, bias, running_mean, running_var, num_batches_tracked},
                                   options.momentum(), options.eps(), group);
}

}  // namespace gradwire
