// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/post_local_sgd_optimizer.h"

#include <c10/util/ScopeExit.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <exception>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/hooks/optimizer_state_internal.h"
#include "gradwire/hooks/replaced_state_internal.h"
#include "gradwire/hooks/split_optimizer_internal.h"
#include "gradwire/optim/param_groups_internal.h"

namespace gradwire {
namespace {

torch::optim::Optimizer& require(const std::unique_ptr<torch::optim::Optimizer>& inner) {
  if (inner == nullptr) throw InvalidArgument("PostLocalSGDOptimizer needs an optimizer to step with; got null.");
  return *inner;
}

}  // namespace

PostLocalSGDOptimizer::PostLocalSGDOptimizer(std::unique_ptr<torch::optim::Optimizer> inner,
                                             std::shared_ptr<ModelAverager> averager)
    : Optimizer(require(inner).param_groups(), require(inner).defaults().clone()),
      inner_(std::move(inner)),
      averager_(std::move(averager)) {
  if (averager_ == nullptr) throw InvalidArgument("PostLocalSGDOptimizer needs an averager; got null.");
  internal::copy_options(inner_->param_groups(), param_groups_);
}

void PostLocalSGDOptimizer::pass_groups_on() const {
  for (std::size_t i = inner_->param_groups().size(); i < param_groups_.size(); ++i)
    inner_->add_param_group(param_groups_[i]);
  internal::copy_options(param_groups_, inner_->param_groups());
}

at::Tensor PostLocalSGDOptimizer::step(LossClosure closure) {
  pass_groups_on();
  at::Tensor loss;
  try {
    loss = inner_->step(std::move(closure));
  } catch (...) {
    averager_->abort(describe(std::current_exception()));
    throw;
  }
  averager_->average_parameters(internal::parameters_in(param_groups_));
  return loss;
}

SeparateWorkers* PostLocalSGDOptimizer::separate_workers() { return dynamic_cast<SeparateWorkers*>(averager_.get()); }

std::string PostLocalSGDOptimizer::save_options() const {
  pass_groups_on();
  auto remembered = std::exchange(inner_->state(), {});
  const auto put_back = c10::make_scope_exit([&] { inner_->state() = std::move(remembered); });
  return internal::bytes_of_optimizer(*inner_);
}

void PostLocalSGDOptimizer::load_options(const std::string& bytes) {
  pass_groups_on();
  internal::load_optimizer(*inner_, bytes);
  for (const at::Tensor& parameter : internal::parameters_in(inner_->param_groups()))
    internal::restore_first_state(*inner_, parameter);
  internal::copy_options(inner_->param_groups(), param_groups_);
}

void PostLocalSGDOptimizer::save(torch::serialize::OutputArchive& archive) const {
  pass_groups_on();
  inner_->save(archive);
  averager_->save(archive);
}

void PostLocalSGDOptimizer::load(torch::serialize::InputArchive& archive) {
  pass_groups_on();
  internal::replace_state(*inner_, [&] {
    inner_->load(archive);
    averager_->load(archive);
  });
  internal::copy_options(inner_->param_groups(), param_groups_);
}

}  // namespace gradwire
