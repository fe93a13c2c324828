// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/clip_hook.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/norm_internal.h"
#include "gradwire/process_group/flat_tensors_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/lane_scope.h"

namespace gradwire {
namespace {

// Is added to the norm, as in PyTorch.
constexpr double kEpsilon = 1e-6;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// One bucket layout for each dtype and device of the gradients, of all parameters that have such a gradient.
std::vector<BucketLayout> layouts_of(const NamedTensors& parameters) {
  std::unordered_set<const at::TensorImpl*> seen;
  std::vector<std::size_t> numbers;
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, parameter] = parameters[i];
    if (!parameter.defined() || !parameter.grad().defined()) continue;
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (parameter.grad().layout() != at::kStrided)
      throw InvalidArgument(concat("reduce_gradients: the gradient of '", name, "' is sparse."));
    numbers.push_back(i);
    gradients.push_back(parameter.grad());
  }
  std::vector<BucketLayout> layouts;
  for (const auto& places : internal::places_by_type_and_device(gradients)) {
    const at::Tensor& first = gradients[places.front()];
    BucketLayout& layout = layouts.emplace_back();
    layout.index = layouts.size() - 1;
    layout.dtype = first.scalar_type();
    layout.device = first.device();
    for (const std::size_t place : places) {
      const auto& [name, parameter] = parameters[numbers[place]];
      layout.append(numbers[place], gradients[place], parameter, name);
    }
  }
  return layouts;
}

// Each once: libtorch lists a parameter of two modules twice.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const at::TensorImpl*> seen;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined() || !parameter.grad().defined()) continue;
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) gradients.push_back(parameter.grad());
  }
  return gradients;
}

void reduce_bucket(CommHook& hook, GradBucket& bucket) {
  const std::vector<at::Tensor> views = bucket.gradients();
  for (std::size_t i = 0; i < views.size(); ++i) views[i].copy_(bucket.parameters()[i].grad());
  bucket.set_buffer(result_of(hook, bucket));
  const std::vector<at::Tensor> averages = bucket.gradients();
  for (std::size_t i = 0; i < averages.size(); ++i) {
    at::Tensor gradient = bucket.parameters()[i].grad();
    gradient.copy_(averages[i]);
  }
}

}  // namespace

double grad_norm(const std::vector<at::Tensor>& parameters, NormKind kind) {
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (kind == NormKind::kL2) return std::sqrt(internal::sum_of_squares(gradients));
  double total = 0;
  for (const at::Tensor& gradient : gradients) {
    const double largest = internal::max_magnitude(gradient);
    if (std::isnan(largest)) return largest;
    total = std::max(total, largest);
  }
  return total;
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, NormKind kind) {
  if (!(max_norm > 0))
    throw InvalidArgument(concat("clip_grad_norm wants a largest norm above 0; got ", max_norm, "."));
  const c10::NoGradGuard no_grad;
  const double norm = grad_norm(parameters, kind);
  const double factor = max_norm / (norm + kEpsilon);
  if (!std::isfinite(norm) || factor >= 1) return norm;
  for (const at::Tensor& gradient : gradients_of(parameters)) gradient.mul_(factor);
  return norm;
}

void reduce_gradients(const NamedTensors& parameters, const std::shared_ptr<CommHook>& hook,
                      const std::shared_ptr<ProcessGroup>& group, std::uint32_t iteration) {
  const c10::NoGradGuard no_grad;
  const std::shared_ptr<ProcessGroup> over = group != nullptr ? group : default_group();
  const std::shared_ptr<CommHook> with = hook != nullptr ? hook : make_allreduce_hook();
  // This thread becomes a lane whose duplicates are the groups themselves, so every collective runs at once here.
  std::vector<LaneScope::Route> routes{{over, over}};
  for (const auto& named : with->traits().groups) routes.push_back({named, named});
  const std::vector<BucketLayout> layouts = layouts_of(parameters);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto layout = std::make_shared<const BucketLayout>(layouts[i]);
    const LaneScope scope(routes, {.iteration = iteration, .bucket = static_cast<std::uint16_t>(i)});
    GradBucket bucket(layout, at::empty({layout->numel}, at::TensorOptions(layout->dtype).device(layout->device)),
                      *over, over->size(), i + 1 == layouts.size(), iteration);
    reduce_bucket(*with, bucket);
  }
}

}  // namespace gradwire
