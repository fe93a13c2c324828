// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/model_averaging.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <span>
#include <string_view>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/optim/gradient_agreement_internal.h"
#include "gradwire/optim/param_groups_internal.h"
#include "gradwire/process_group/flat_tensors_internal.h"
#include "gradwire/process_group/init.h"

namespace gradwire {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{25} << 20;
constexpr const char* kStep = "step";
constexpr const char* kPeriodic = "PeriodicModelAverager";
constexpr const char* kHierarchical = "HierarchicalModelAverager";

std::shared_ptr<ProcessGroup> or_default(std::shared_ptr<ProcessGroup> group) {
  return group != nullptr ? std::move(group) : default_group();
}

std::int64_t require_not_negative(std::string_view who, const char* what, std::int64_t value) {
  if (value < 0) throw InvalidArgument(concat(who, ": ", what, " is ", value, "; it must be 0 or more."));
  return value;
}

std::int64_t require_positive(std::int64_t period) {
  if (period < 1)
    throw InvalidArgument(concat("PeriodicModelAverager: the period is ", period, "; it must be 1 or more."));
  return period;
}

// Averages those of `parameters` that have a gradient. `told`: whether the user knows that there may be none.
void average_at(std::string_view who, const std::vector<at::Tensor>& parameters,
                const std::shared_ptr<ProcessGroup>& group, std::int64_t step, bool& told) {
  if (internal::average_with_gradients(who, parameters, group, step) || std::exchange(told, true)) return;
  log::warn(concat(who, ": no parameter has a gradient at step ", step,
                   ", so nothing is averaged; clear the gradients after the average, not before it."));
}

// One message: parameters of one type and device.
void average_message(std::span<const at::Tensor> parameters, ProcessGroup& group) {
  at::Tensor message = internal::flatten(parameters);
  message.div_(group.size());
  AllReduceOptions options;
  options.async = false;
  group.all_reduce({message}, options)->wait();
  internal::unflatten(message, parameters);
}

}  // namespace

void ModelAverager::abort(const std::string& /*reason*/) {}

void ModelAverager::save(torch::serialize::OutputArchive& archive) const { archive.write(kStep, c10::IValue(step())); }

void ModelAverager::load(torch::serialize::InputArchive& archive) {
  c10::IValue step(std::int64_t{0});
  archive.try_read(kStep, step);
  set_step(step.toInt());
}

std::vector<at::Tensor> parameters_to_average(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> chosen;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) chosen.push_back(parameter);
  }
  return chosen;
}

std::vector<at::Tensor> parameters_to_average(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  return parameters_to_average(internal::parameters_in(groups));
}

void average_parameters(const std::vector<at::Tensor>& parameters, const std::shared_ptr<ProcessGroup>& group) {
  const c10::NoGradGuard no_grad;
  const std::shared_ptr<ProcessGroup> over = or_default(group);
  if (over->size() == 1) return;
  std::vector<at::Tensor> with_elements;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.numel() > 0) with_elements.push_back(parameter);
  }
  for (const auto& list : internal::by_type_and_device(with_elements)) {
    for (const auto& run : internal::in_runs_of(list, kMessageBytes)) average_message(run, *over);
  }
}

PeriodicModelAverager::PeriodicModelAverager(std::int64_t period, std::int64_t warm_up,
                                             std::shared_ptr<ProcessGroup> group)
    : period_(require_positive(period)),
      warm_up_(require_not_negative(kPeriodic, "warm_up", warm_up)),
      group_(or_default(std::move(group))) {}

void PeriodicModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  if (step_ >= warm_up_ && (step_ - warm_up_) % period_ == 0)
    average_at(kPeriodic, parameters, group_, step_, told_of_no_gradients_);
  ++step_;
}

void PeriodicModelAverager::set_step(std::int64_t step) { step_ = require_not_negative(kPeriodic, "the step", step); }

HierarchicalModelAverager::HierarchicalModelAverager(const std::vector<Level>& levels, std::int64_t warm_up,
                                                     std::shared_ptr<ProcessGroup> group)
    : warm_up_(require_not_negative(kHierarchical, "warm_up", warm_up)) {
  const std::shared_ptr<ProcessGroup> all = or_default(std::move(group));
  if (levels.empty()) throw InvalidArgument("HierarchicalModelAverager got no levels; give periods and group sizes.");
  std::int64_t before = 0;
  for (const Level& level : levels) {
    if (level.period <= before) {
      throw InvalidArgument(concat("HierarchicalModelAverager: period ", level.period, " comes after ", before,
                                   "; periods begin at 1 or more and rise."));
    }
    before = level.period;
    if (level.group_size < 1 || all->size() % level.group_size != 0) {
      throw InvalidArgument(concat("HierarchicalModelAverager: groups of ", level.group_size, " ranks; the ",
                                   all->size(), " ranks of the group cannot be divided so."));
    }
  }
  if (levels.back().group_size != all->size()) {
    throw InvalidArgument(concat("HierarchicalModelAverager: the last group size is ", levels.back().group_size,
                                 "; it must be that of the whole group, ", all->size(), "."));
  }
  for (const Level& level : levels) {
    groups_.emplace_back(level.period,
                         level.group_size == all->size() ? all : all->split(all->rank() / level.group_size));
  }
}

std::shared_ptr<ProcessGroup> HierarchicalModelAverager::group_at(std::int64_t step) const {
  if (step < warm_up_) return nullptr;
  for (auto level = groups_.rbegin(); level != groups_.rend(); ++level) {
    if (step % level->first == 0) return level->second;
  }
  return nullptr;
}

void HierarchicalModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  const std::shared_ptr<ProcessGroup> group = group_at(step_);
  if (group != nullptr) average_at(kHierarchical, parameters, group, step_, told_of_no_gradients_);
  ++step_;
}

void HierarchicalModelAverager::set_step(std::int64_t step) {
  step_ = require_not_negative(kHierarchical, "the step", step);
}

}  // namespace gradwire
