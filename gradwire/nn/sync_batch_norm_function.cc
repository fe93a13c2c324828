// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// With x' = (x - mean) r, r = 1 / sqrt(variance + eps), y = x' w + b, and sums and n over all ranks:
//   db = sum dy,  dw = r sum dy (x - mean)                     of this rank's elements
//   dx = w r (dy - sum dy / n - (x - mean) r^2 sum dy (x - mean) / n)
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "gradwire/base/backward_errors.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/functional/functional.h"
#include "gradwire/nn/sync_batch_norm_function_internal.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/observe/interpreter_line_internal.h"

namespace gradwire::internal {
namespace {

// Of all ranks' elements of each channel.
struct BatchStatistics {
  at::Tensor mean, variance;    // [C] of float64; variance: the biased one
  double count = 0;             // elements a channel
  bool needs_gradient = false;  // some rank's input needs a gradient
};

using torch::autograd::AutogradContext;

constexpr const char* kCall = "call";

// What a rank says of the backward pass to come.
enum Wish : int { kNone = 0, kNeedsGradient = 1, kNoGradMode = 2 };

Wish wish_of(const at::Tensor& input) {
  if (!c10::GradMode::is_enabled()) return kNoGradMode;
  return input.requires_grad() ? kNeedsGradient : kNone;
}

// All dimensions but that of the channels.
std::vector<std::int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// The type of the arithmetic on elements.
at::ScalarType wide_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// One value a channel, in the shape that broadcasts over `like`.
at::Tensor over_channels(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.to(like.scalar_type()).view(shape);
}

// What backward needs beside tensors.
struct Call : torch::CustomClassHolder {
  Call(std::shared_ptr<ProcessGroup> group_in, double eps_in, const BatchStatistics& statistics)
      : group(std::move(group_in)),
        eps(eps_in),
        count(std::max(statistics.count, 1.0)),
        needs_gradient(statistics.needs_gradient) {}
  std::shared_ptr<ProcessGroup> group;
  double eps;
  double count;  // at least 1: sums over nothing are zero, and so is what is made of them
  bool needs_gradient;
  std::optional<at::ScalarType> bias_type;
  TranslateError errors = backward_errors();
};

struct Moments {
  at::Tensor mean, inverse;  // [C] of float64
};

Moments moments_of(const BatchStatistics& statistics, double eps) {
  return {statistics.mean, statistics.variance.add(eps).rsqrt()};
}

at::Tensor sum_over(const at::Tensor& values, const std::vector<std::int64_t>& dims) {
  return values.sum(dims).to(at::kDouble);
}

// The same moments as functions of the input that autograd can follow.
Moments differentiable_moments(const at::Tensor& wide, const Call& call) {
  const auto dims = reduced_dims(wide);
  const at::Tensor mean = functional::all_reduce(sum_over(wide, dims), call.group) / call.count;
  const at::Tensor squares = sum_over((wide - over_channels(mean, wide)).square(), dims);
  const at::Tensor variance = functional::all_reduce(squares, call.group) / call.count;
  return {mean, (variance + call.eps).rsqrt()};
}

// `sums` of all ranks.
at::Tensor add_up(const at::Tensor& sums, const Call& call) {
  if (c10::GradMode::is_enabled()) return functional::all_reduce(sums, call.group);
  AllReduceOptions options;
  options.async = false;
  call.group->all_reduce({sums}, options)->wait();
  return sums;
}

struct Normalize : torch::autograd::Function<Normalize> {
  // `anchor` requires a gradient where any rank's input does, so that a rank whose own needs none comes to the
  // collective of the backward pass all the same.
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Call>& call, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                            const at::Tensor& mean, const at::Tensor& inverse, const at::Tensor& /*anchor*/) {
    const at::Tensor scale = weight ? weight->to(at::kDouble) * inverse : inverse;
    const at::Tensor shift = bias ? bias->to(at::kDouble) - mean * scale : -mean * scale;
    context->saved_data[kCall] = c10::IValue::make_capsule(call);
    context->save_for_backward({input, weight.value_or(at::Tensor()), mean, inverse});
    const at::Tensor wide = input.to(wide_type(input));
    return at::addcmul(over_channels(shift, wide), wide, over_channels(scale, wide)).to(input.scalar_type());
  }

  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    const auto capsule = context->saved_data[kCall].toCapsule();
    const Call& call = static_cast<const Call&>(*capsule);
    const observe::CallerLine caller(observe::interpreter_line());
    return run_backward(call.errors, [&] { return gradients_of(call, context->get_saved_variables(), gradients); });
  }

 private:
  static Tensors gradients_of(const Call& call, const Tensors& saved, const Tensors& gradients) {
    const at::Tensor &input = saved[0], &weight = saved[1];
    const at::Tensor wide = input.to(wide_type(input)), dy = gradients[0].to(wide.scalar_type());
    const bool again = c10::GradMode::is_enabled() && call.needs_gradient;
    const Moments moments = again ? differentiable_moments(wide, call) : Moments{saved[2], saved[3]};
    const at::Tensor centered = wide - over_channels(moments.mean, wide);
    const auto dims = reduced_dims(wide);
    const at::Tensor sum_dy = sum_over(dy, dims), sum_dy_centered = sum_over(dy * centered, dims);

    Tensors found(7);  // of: call, input, weight, bias, mean, inverse, anchor
    if (weight.defined()) found[2] = (sum_dy_centered * moments.inverse).to(weight.scalar_type());
    if (call.needs_gradient) {
      const at::Tensor sums = add_up(at::cat({sum_dy, sum_dy_centered}), call) / call.count;
      const at::Tensor mean_dy = sums.narrow(0, 0, sum_dy.numel());
      const at::Tensor slope = sums.narrow(0, sum_dy.numel(), sum_dy.numel()) * moments.inverse.square();
      const at::Tensor scale = weight.defined() ? weight.to(at::kDouble) * moments.inverse : moments.inverse;
      const at::Tensor inner = dy - over_channels(mean_dy, wide) - centered * over_channels(slope, wide);
      found[1] = (inner * over_channels(scale, wide)).to(input.scalar_type());
    }
    if (call.bias_type) found[3] = sum_dy.to(*call.bias_type);
    return found;
  }
};

// Collective.
BatchStatistics gather_statistics(const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group) {
  const Wish wish = wish_of(input);
  const c10::NoGradGuard no_grad;
  const std::int64_t channels = input.size(1), own_count = input.numel() / channels;
  // Mean, variance, count, wish.
  at::Tensor own = at::zeros({2 * channels + 2}, input.options().dtype(at::kDouble).requires_grad(false));
  if (own_count > 0) {
    const auto [variance, mean] = at::var_mean(input.to(wide_type(input)), reduced_dims(input), /*unbiased=*/false);
    own.narrow(0, 0, channels).copy_(mean);
    own.narrow(0, channels, channels).copy_(variance);
  }
  own[2 * channels].fill_(own_count);
  own[2 * channels + 1].fill_(static_cast<int>(wish));
  at::Tensor all = at::empty({group->size(), own.numel()}, own.options());
  AllGatherOptions options;
  options.async = false;
  group->all_gather_into_tensor(all, own, options)->wait();

  const at::Tensor told = all.narrow(1, 2 * channels, 2).cpu();
  BatchStatistics result;
  bool no_grad_mode = false;
  for (int rank = 0; rank < group->size(); ++rank) {
    result.count += told[rank][0].item<double>();
    const int theirs = told[rank][1].item<int>();
    result.needs_gradient = result.needs_gradient || theirs == kNeedsGradient;
    no_grad_mode = no_grad_mode || theirs == kNoGradMode;
  }
  if (result.needs_gradient && no_grad_mode) {
    throw InvalidArgument(concat("SyncBatchNorm on rank ", group->rank(), " of ", group->size(),
                                 ": a rank needs a gradient, but another one calls in no-grad mode and could not take "
                                 "part in backward; call it in one mode on all ranks"));
  }
  if (result.count == 1) refuse_one_value(group.get());

  // In rank order: the same bits on all ranks.
  result.mean = at::zeros({channels}, own.options());
  result.variance = at::zeros({channels}, own.options());
  const auto for_each_rank = [&](const auto& add) {
    for (int rank = 0; rank < group->size(); ++rank) {
      const double share = told[rank][0].item<double>() / result.count;
      if (share > 0) add(all[rank].narrow(0, 0, channels), all[rank].narrow(0, channels, channels), share);
    }
  };
  for_each_rank([&](const at::Tensor& mean, const at::Tensor&, double share) { result.mean.add_(mean, share); });
  for_each_rank([&](const at::Tensor& mean, const at::Tensor& variance, double share) {
    result.variance.add_(variance.add((mean - result.mean).square()), share);
  });
  return result;
}

// Nothing where the statistics are not tracked, or where the batch has no elements.
void track(const BatchStatistics& statistics, const BatchNormTensors& layer, std::optional<double> momentum) {
  if (!layer.running_mean.defined() || statistics.count == 0) return;
  const c10::NoGradGuard no_grad;
  const double part = count_batch(layer.num_batches_tracked, momentum);
  const double unbiased = statistics.count / (statistics.count - 1);
  const auto move = [part](at::Tensor running, const at::Tensor& towards) {
    running.mul_(1 - part).add_(towards.to(running.scalar_type()), part);
  };
  move(layer.running_mean, statistics.mean);
  move(layer.running_var, statistics.variance.mul(unbiased));
}

at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const BatchStatistics& statistics, double eps, const std::shared_ptr<ProcessGroup>& group) {
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  const Moments moments = moments_of(statistics, eps);
  const at::Tensor anchor = at::empty({0}, input.options().requires_grad(false))
                                .requires_grad_(statistics.needs_gradient && c10::GradMode::is_enabled());
  auto call = c10::make_intrusive<Call>(group, eps, statistics);
  if (bias.defined()) call->bias_type = bias.scalar_type();
  return Normalize::apply(std::move(call), input, optional(weight), optional(bias), moments.mean, moments.inverse,
                          anchor);
}

}  // namespace

void refuse_one_value(const ProcessGroup* group) {
  throw InvalidArgument(concat(
      "SyncBatchNorm", group == nullptr ? std::string() : concat(" on rank ", group->rank(), " of ", group->size()),
      ": there is one element a channel", group == nullptr ? "" : " over all ranks",
      ", which has no variance; training needs more"));
}

double count_batch(const at::Tensor& num_batches_tracked, std::optional<double> momentum) {
  if (num_batches_tracked.defined()) {
    const c10::NoGradGuard no_grad;
    num_batches_tracked.add_(1);
  }
  if (momentum) return *momentum;
  return num_batches_tracked.defined() ? 1.0 / num_batches_tracked.item<double>() : 0.0;
}

at::Tensor sync_batch_norm(const at::Tensor& input, const BatchNormTensors& layer, std::optional<double> momentum,
                           double eps, const std::shared_ptr<ProcessGroup>& group) {
  const BatchStatistics statistics = gather_statistics(input, group);
  track(statistics, layer, momentum);
  return normalize(input, layer.weight, layer.bias, statistics, eps, group);
}

}  // namespace gradwire::internal
