// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/optimizer_overlap_hooks.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/averaged_bucket_internal.h"
#include "gradwire/hooks/frozen_internal.h"
#include "gradwire/hooks/optimizer_state_internal.h"
#include "gradwire/hooks/unstepped_internal.h"
#include "gradwire/hooks/wrapper_internal.h"

namespace gradwire {
namespace {

constexpr std::string_view kPrefix = "optimizer/";

// Runs the inner hook to its end, then calls `step` for each parameter of the bucket that needs a gradient. `step`
// returns whether it steps the parameter.
template <class Step>
Future run_then_step(CommHook& inner, const GradBucket& bucket, internal::UnsteppedParameters& unstepped,
                     const Step& step) {
  const GradBucket averaged = internal::averaged_bucket(inner, bucket);
  const std::vector<at::Tensor> gradients = averaged.gradients();
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::string& name = bucket.parameter_names()[i];
    const at::Tensor& parameter = bucket.parameters()[i];
    if (!parameter.requires_grad() || !step(name, parameter, gradients[i])) unstepped.add(name);
  }
  return completed_future(averaged.buffer());
}

HookTraits traits_around(const char* what, const std::shared_ptr<CommHook>& inner, bool has_step) {
  if (!has_step) throw InvalidArgument(concat(what, " needs what to step parameters with; got null."));
  return internal::traits_around(what, inner, /*keeps_single_collective=*/false);
}

class HookThenStep final : public internal::HookWrapper {
 public:
  HookThenStep(const std::shared_ptr<CommHook>& inner, ParameterStep step)
      : HookWrapper(traits_around("hook_then_step", inner, step != nullptr), inner), step_(std::move(step)) {}
  Future run(GradBucket& bucket) override {
    Future done =
        run_then_step(inner(), bucket, unstepped_,
                      [this](const std::string& name, const at::Tensor& parameter, const at::Tensor& gradient) {
                        step_(name, parameter, gradient);
                        return true;
                      });
    frozen_.watch(bucket, [](std::size_t) { return true; });
    return done;
  }
  void revert_unused(const std::vector<std::string>& names) override {
    frozen_.revert_unused(names);
    unstepped_.revert_unused(inner(), names);
  }
  void end_iteration() override {
    unstepped_.end_iteration();
    frozen_.end_iteration();
    HookWrapper::end_iteration();
  }

 private:
  const ParameterStep step_;
  internal::FrozenParameters frozen_;
  internal::UnsteppedParameters unstepped_;
};

}  // namespace

HookThenOptimizer::HookThenOptimizer(std::shared_ptr<CommHook> inner, ParameterOptimizerFactory factory)
    : CommHook(traits_around("hook_then_optimizer", inner, factory != nullptr)),
      inner_(std::move(inner)),
      factory_(std::move(factory)),
      frozen_(std::make_unique<internal::FrozenParameters>()),
      unstepped_(std::make_unique<internal::UnsteppedParameters>()) {}

HookThenOptimizer::~HookThenOptimizer() = default;

Future HookThenOptimizer::run(GradBucket& bucket) {
  Future done = run_then_step(*inner_, bucket, *unstepped_,
                              [this](const std::string& name, const at::Tensor& parameter, const at::Tensor& gradient) {
                                torch::optim::Optimizer* optimizer = optimizer_of(name, parameter);
                                if (optimizer == nullptr) return false;
                                const internal::LentGradient lent(parameter, gradient);
                                optimizer->step();
                                return true;
                              });
  frozen_->watch(bucket, [&](std::size_t place) {
    return optimizer_of(bucket.parameter_names()[place], bucket.parameters()[place]) != nullptr;
  });
  return done;
}

void HookThenOptimizer::revert_unused(const std::vector<std::string>& names) {
  frozen_->revert_unused(names);
  unstepped_->revert_unused(*inner_, names);
}

void HookThenOptimizer::end_iteration() {
  unstepped_->end_iteration();
  frozen_->end_iteration();
  inner_->end_iteration();
}

bool HookThenOptimizer::memory_lies_with_first_ranks() const { return gradwire::memory_lies_with_first_ranks(*inner_); }

torch::optim::Optimizer* HookThenOptimizer::optimizer_of(const std::string& name, const at::Tensor& parameter) {
  MutexLock lock(mutex_);
  auto found = entries_.find(name);
  if (found == entries_.end() || !found->second.parameter.is_same(parameter))
    found = entries_.insert_or_assign(name, Entry{parameter, factory_(name, parameter)}).first;
  Entry& entry = found->second;
  const auto loaded = loaded_.find(name);
  if (loaded != loaded_.end() && entry.optimizer != nullptr) {
    give_state(name, entry, loaded->second);
    loaded_.erase(loaded);
  }
  return entry.optimizer.get();
}

// An optimizer makes the state of a parameter at its first step, in a class that only the optimizer knows. So the
// factory makes a second optimizer, which steps a dummy parameter; then the loaded parts are written into the resulting
// state, and the state is moved.
void HookThenOptimizer::give_state(const std::string& name, Entry& entry, const Parts& parts) {
  auto& states = entry.optimizer->state();
  void* const key = entry.parameter.unsafeGetTensorImpl();
  internal::restore_first_state(*entry.optimizer, entry.parameter);
  if (parts.empty()) return;
  const at::Tensor model = at::zeros_like(entry.parameter).set_requires_grad(true);
  model.mutable_grad() = at::zeros_like(entry.parameter);
  const std::unique_ptr<torch::optim::Optimizer> maker = factory_(name, model);
  if (maker != nullptr) maker->step();
  const auto made = maker == nullptr ? states.end() : maker->state().find(model.unsafeGetTensorImpl());
  if (maker == nullptr || made == maker->state().end() ||
      !internal::replace_parts(*made->second, parts, entry.parameter.device())) {
    throw InvalidArgument(concat("The state that was loaded for the optimizer of '", name, "' has '",
                                 parts.begin()->first,
                                 "', which this kind of optimizer does not have; it was saved "
                                 "by another one."));
  }
  states[key] = std::move(made->second);
}

void HookThenOptimizer::for_each(const std::function<void(const std::string&, torch::optim::Optimizer&)>& visit) {
  MutexLock lock(mutex_);
  for (auto& [name, entry] : entries_) {
    if (entry.optimizer != nullptr) visit(name, *entry.optimizer);
  }
}

HookState HookThenOptimizer::state_dict() const {
  HookState state = inner_->state_dict();
  MutexLock lock(mutex_);
  const auto add = [&](const std::string& name, const Parts& parts) {
    for (const auto& [part, value] : parts) state.insert_or_assign(concat(kPrefix, part, "/", name), value);
  };
  for (const auto& [name, entry] : entries_) {
    if (entry.optimizer == nullptr || loaded_.contains(name)) continue;
    const auto found = entry.optimizer->state().find(entry.parameter.unsafeGetTensorImpl());
    if (found != entry.optimizer->state().end()) add(name, internal::parts_of(*found->second));
  }
  for (const auto& [name, parts] : loaded_) add(name, parts);
  return state;
}

void HookThenOptimizer::load_state_dict(const HookState& state) {
  HookState of_inner;
  std::map<std::string, Parts> loaded;
  for (const auto& [key, value] : state) {
    const std::string_view rest = std::string_view(key).substr(std::min(kPrefix.size(), key.size()));
    const auto slash = rest.find('/');
    if (!key.starts_with(kPrefix)) {
      of_inner.emplace(key, value);
    } else if (slash == std::string_view::npos) {
      throw InvalidArgument(concat("The state of hook_then_optimizer has a value '", key,
                                   "', which names no parameter; it was saved by another hook."));
    } else {
      loaded[std::string(rest.substr(slash + 1))].emplace(rest.substr(0, slash), value);
    }
  }
  inner_->load_state_dict(of_inner);
  MutexLock lock(mutex_);
  // Parameters that the loaded state does not mention start with empty state.
  for (const auto& [name, entry] : entries_) loaded.try_emplace(name);
  loaded_ = std::move(loaded);
}

std::shared_ptr<HookThenOptimizer> make_hook_then_optimizer(std::shared_ptr<CommHook> inner,
                                                            ParameterOptimizerFactory factory) {
  return std::make_shared<HookThenOptimizer>(std::move(inner), std::move(factory));
}

std::shared_ptr<CommHook> make_hook_then_step(std::shared_ptr<CommHook> inner, ParameterStep step) {
  return std::make_shared<HookThenStep>(inner, std::move(step));
}

}  // namespace gradwire
