// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/split_optimizer_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <cstddef>
#include <memory>
#include <set>
#include <typeinfo>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/ddp/archive_bytes_internal.h"
#include "gradwire/hooks/optimizer_state_internal.h"
#include "gradwire/hooks/replaced_state_internal.h"

namespace gradwire::internal {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

// Smaller tensors stay in the archive.
constexpr std::size_t kLarge = std::size_t{64} << 10;

bool is_large(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_contiguous() && tensor.nbytes() >= kLarge;
}

// A tensor of the same dtype and sizes on the CPU, in the memory of one element.
at::Tensor placeholder_for(const at::Tensor& tensor) {
  return at::zeros({1}, tensor.options().device(at::kCPU)).expand(tensor.sizes());
}

bool is_placeholder(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 1 && tensor.storage().nbytes() == tensor.dtype().itemsize();
}

// Null unless it is of this very class: a class that derives from it may have more.
template <class State>
State* as(OptimizerParamState& state) {
  return typeid(state) == typeid(State) ? static_cast<State*>(&state) : nullptr;
}

// Puts states in the place of an optimizer's, and brings these back.
class Replaced {
 public:
  explicit Replaced(Optimizer& optimizer) : states_(optimizer.state()) {}
  ~Replaced() {
    for (auto& [key, state] : before_) states_[key] = std::move(state);
  }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;

  void replace(void* key, std::unique_ptr<OptimizerParamState> state) {
    before_.emplace_back(key, std::exchange(states_.at(key), std::move(state)));
  }

 private:
  decltype(std::declval<Optimizer&>().state()) states_;
  std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>> before_;
};

// Calls `visit(parameter, state)` for the state of each parameter, in the order of the parameters. A parameter may be
// there more than once.
template <class Visit>
void for_each_state(Optimizer& optimizer, const Visit& visit) {
  std::set<void*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      void* const key = parameter.unsafeGetTensorImpl();
      if (!seen.insert(key).second) continue;
      if (const auto found = optimizer.state().find(key); found != optimizer.state().end())
        visit(parameter, *found->second);
    }
  }
}

// The reverse of large_tensors_of(): puts `tensors` in the place of the placeholders.
void put_in_place(Optimizer& optimizer, const std::vector<at::Tensor>& tensors) {
  auto next = tensors.begin();
  for_each_state(optimizer, [&](const at::Tensor&, OptimizerParamState& state) {
    for (at::Tensor* const tensor : tensors_of(state)) {
      if (!is_placeholder(*tensor)) continue;
      if (next == tensors.end() || next->nbytes() != tensor->nbytes())
        throw InternalError("the tensors of an optimizer are not those of its archive");
      *tensor = next++->view(tensor->scalar_type()).view(tensor->sizes());
    }
  });
  if (next != tensors.end()) throw InternalError("an optimizer's archive has fewer tensors than came with it");
}

// Calls `write` while `change(tensor)` was called for each tensor of a copy of the optimizer's states, which is in
// their place.
template <class Change, class Write>
void with_changed(Optimizer& optimizer, const Change& change, const Write& write) {
  Replaced replaced(optimizer);
  for_each_state(optimizer, [&](const at::Tensor& parameter, OptimizerParamState& state) {
    if (tensors_of(state).empty()) return;
    std::unique_ptr<OptimizerParamState> changed = state.clone();  // its tensors are those of `state`
    for (at::Tensor* const tensor : tensors_of(*changed)) {
      if (tensor->defined()) change(*tensor);
    }
    replaced.replace(parameter.unsafeGetTensorImpl(), std::move(changed));
  });
  write();
}

// `complete` is called when the states are those of the archive, with their tensors on the CPU.
template <class Complete>
void load_with(Optimizer& optimizer, std::string_view archive, const Complete& complete) {
  const c10::NoGradGuard no_grad;
  torch::serialize::InputArchive read = read_archive(archive);
  replace_state(optimizer, [&] {
    optimizer.load(read);
    complete();
  });
}

}  // namespace

std::vector<at::Tensor*> tensors_of(OptimizerParamState& state) {
  using namespace torch::optim;
  if (auto* const adam = as<AdamParamState>(state))
    return {&adam->exp_avg(), &adam->exp_avg_sq(), &adam->max_exp_avg_sq()};
  if (auto* const adamw = as<AdamWParamState>(state))
    return {&adamw->exp_avg(), &adamw->exp_avg_sq(), &adamw->max_exp_avg_sq()};
  if (auto* const sgd = as<SGDParamState>(state)) return {&sgd->momentum_buffer()};
  if (auto* const rmsprop = as<RMSpropParamState>(state))
    return {&rmsprop->square_avg(), &rmsprop->momentum_buffer(), &rmsprop->grad_avg()};
  if (auto* const adagrad = as<AdagradParamState>(state)) return {&adagrad->sum()};
  return {};
}

std::vector<at::Tensor> large_tensors_of(Optimizer& optimizer) {
  std::vector<at::Tensor> large;
  for_each_state(optimizer, [&](const at::Tensor&, OptimizerParamState& state) {
    for (const at::Tensor* const tensor : tensors_of(state)) {
      if (is_large(*tensor)) large.push_back(tensor->detach());
    }
  });
  return large;
}

void save_on_cpu(Optimizer& optimizer, torch::serialize::OutputArchive& archive) {
  const c10::NoGradGuard no_grad;
  with_changed(
      optimizer, [](at::Tensor& tensor) { tensor = tensor.cpu(); }, [&] { optimizer.save(archive); });
}

std::string bytes_of_optimizer(Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  save_on_cpu(optimizer, archive);
  return archive_bytes(archive);
}

void load_optimizer(Optimizer& optimizer, std::string_view bytes) {
  load_with(optimizer, bytes, [] {});
}

void move_to_parameters(Optimizer& optimizer) {
  const c10::NoGradGuard no_grad;
  for_each_state(optimizer, [](const at::Tensor& parameter, OptimizerParamState& state) {
    if (parameter.is_cpu()) return;
    const std::vector<at::Tensor*> own = tensors_of(state);
    for (at::Tensor* const tensor : own) {
      if (tensor->defined()) *tensor = tensor->to(parameter.device());
    }
    if (own.empty()) GRADWIRE_CHECK(replace_parts(state, parts_of(state), parameter.device()));
  });
}

SplitOptimizer split_optimizer(Optimizer& optimizer) {
  const c10::NoGradGuard no_grad;
  SplitOptimizer parts{.tensors = large_tensors_of(optimizer)};
  const auto leave_out_large = [](at::Tensor& tensor) {
    if (is_large(tensor)) {
      tensor = placeholder_for(tensor);
    } else if (is_placeholder(tensor)) {
      tensor = tensor.clone(at::MemoryFormat::Contiguous);  // a state that looks like one
    }
    tensor = tensor.cpu();
  };
  with_changed(optimizer, leave_out_large, [&] {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    parts.archive = archive_bytes(archive);
  });
  return parts;
}

void load_split(Optimizer& optimizer, std::string_view archive, const std::vector<at::Tensor>& tensors) {
  load_with(optimizer, archive, [&] {
    put_in_place(optimizer, tensors);
    move_to_parameters(optimizer);
  });
}

}  // namespace gradwire::internal
